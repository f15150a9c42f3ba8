"""Training of adapters where something is wrong: settings, data, numbers that are not finite, a full disk."""

from __future__ import annotations

import json
import math

import pytest
from decoder2vec.recipes.objective import Objective

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DivergedError, InputError, StorageError, UnknownNameError, UnsupportedError
from decoder2vec.maths.losses import info_nce
from decoder2vec.training import checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import Plan, read_plan
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import small_recipe, toy_data, toy_examples, toy_pairs


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_text_cannot_be_trained_on_in_chunks(model):
    with pytest.raises(InputError, match="trained on as a whole; set on_overflow to truncate or error"):
        Trainer(small_recipe("lora", read=ReadSettings(on_overflow="chunk")), toy_data(), model)


def test_a_prompt_that_cannot_see_the_text_is_refused():
    with pytest.raises(InputError, match="A prompt before the text never sees it under causal attention"):
        small_recipe("soft_prompt", place="prepend")
    with pytest.raises(InputError, match="The text never sees a prompt behind it under causal attention"):
        small_recipe("soft_prompt", output="text")
    small_recipe("soft_prompt", place="prepend", output="text")
    small_recipe("soft_prompt", place="prepend", attention="bidirectional")


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix"])
@pytest.mark.parametrize("tokens", [0, -3, 256, 5000])
def test_as_many_tokens_as_do_not_fit_are_refused(name, tokens, model):
    with pytest.raises(InputError, match=r"leave no room for a text|has 1 to 255 tokens|over the model's context"):
        Trainer(small_recipe(name, tokens=tokens), toy_data(), model).run(0)


@pytest.mark.parametrize("name", ["lora", "full"])
def test_a_layer_that_looks_one_way_is_not_read_where_both_were_asked_for(name):
    """All weights are saved up to the layer that is read: nothing of the upper direction would be left."""
    model = Backbone.load("tiny-llama", device="cpu")
    with pytest.raises(InputError, match="Layer 2 looks one way only with bidirectional:2"):
        Trainer(small_recipe(name, attention="bidirectional:2", read=ReadSettings(layer=2)), toy_data(), model)


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix", "lora", "full"])
def test_the_embeddings_are_no_layer_to_train(name, model):
    with pytest.raises(InputError, match="Layer 0 is the embeddings"):
        Trainer(small_recipe(name, read=ReadSettings(layer=0)), toy_data(), model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "triplet"},
        {"attention": "sideways"},
        {"choose_by": "kendall"},
        {"read": "median"},
        {"place": "beside"},
    ],
    ids=str,
)
def test_names_that_do_not_exist_are_refused(wrong):
    made = {"objective": Objective, "read": lambda pooling: ReadSettings(pooling=pooling)}
    with pytest.raises(UnknownNameError):
        small_recipe("soft_prompt", **{key: made.get(key, str)(value) for key, value in wrong.items()})


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"dropout": 1.0}, {"chunk": -1}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError):
        small_recipe("lora", **wrong)
    with pytest.raises(InputError, match="temperature must be above 0"):
        Objective(temperature=0.0)


def test_a_family_that_cannot_look_ahead_is_refused_with_the_reason(backbone):
    recipe = small_recipe("soft_prompt", place="prepend", attention="bidirectional")
    with pytest.raises(UnsupportedError, match="gpt_neo cannot be read with bidirectional attention: its causal mask"):
        Trainer(recipe, toy_data(), backbone("tiny-gpt_neo"))


def test_a_prompt_before_the_text_learns_under_bidirectional_attention(own_cache, tmp_path):
    from decoder2vec.backbone.backbone import Backbone

    own = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    recipe = small_recipe("soft_prompt", place="prepend", attention="bidirectional", read=ReadSettings(pooling="mean"))
    outcome = train(Plan("toy", recipe=recipe), toy_data(), own, tmp_path / "encoder")
    losses = outcome.results["seeds"][0]["notes"]["training"]["losses"]
    assert losses[-1] < losses[0]
    loaded = Encoder.load(tmp_path / "encoder", device="cpu")
    assert loaded.spec.attention == "bidirectional"
    assert (loaded.encode(["cats sleep"]) == outcome.encoder.encode(["cats sleep"])).all()


# --- runs that go wrong ---------------------------------------------------------------------------------------------


@pytest.fixture
def run(model, tmp_path, monkeypatch):
    """run(): six steps with a checkpoint after each; run(spoil=function): the fourth loss goes through it."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    work = tmp_path / "work"

    def go(spoil=None, folder=work, steps=None):
        calls = []

        def loss(*roles, **options):
            calls.append(1)
            plain = info_nce(*roles, **options)
            return spoil(plain, roles[0]) if spoil and len(calls) == 4 else plain

        monkeypatch.setattr("decoder2vec.training.lessons.contrast.info_nce", loss)
        on_progress = (lambda note: steps.append(note.step)) if steps is not None else lambda _: None
        return Trainer(small_recipe("soft_prompt", every=1), toy_data(), model).run(
            0, work=folder, on_progress=on_progress
        )

    go.files = lambda: list(work.glob("*.safetensors"))
    return go


def infinite_slope(loss, vectors):
    """The loss is as it was, and its gradient is not a number."""
    return loss + (vectors.sum() * 0).sqrt()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda loss, _: loss * math.nan,
            "The loss of triplets is not finite in step 4 of 6; try a lower learning rate",
        ),
        (infinite_slope, "The dev score of triplets is not finite after step 4 of 6; try a lower learning rate"),
    ],
    ids=["loss", "gradient"],
)
def test_a_run_that_is_not_finite_stops_and_keeps_what_was_good(spoil, said, run, tmp_path):
    with pytest.raises(DivergedError, match=said) as caught:
        run(spoil)
    assert f"the state before it is kept in {run.files()[0]}" in str(caught.value)
    steps = []
    resumed, whole = run(steps=steps), run(folder=tmp_path / "other")
    assert steps[0] == 4
    assert resumed.notes == whole.notes and resumed.encoder.fingerprint == whole.encoder.fingerprint


def test_a_full_disk_is_told_and_the_last_checkpoint_survives(run, monkeypatch, tmp_path):
    plain, written = checkpoint.save_file, []

    def until_full(tensors, file, **options):
        written.append(file)
        if len(written) > 2:
            file.write_bytes(b"half a")
            raise OSError(28, "No space left on device")
        plain(tensors, file, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", until_full)
        with pytest.raises(StorageError, match=r"cannot be written \(.*No space left.*\); make room and start again"):
            run()
    assert len(run.files()) == 1, "and nothing half-written beside it"
    steps = []
    resumed, whole = run(steps=steps), run(folder=tmp_path / "other")
    assert steps[0] == 3
    assert resumed.encoder.fingerprint == whole.encoder.fingerprint


# --- logs -----------------------------------------------------------------------------------------------------------


def logs_of(folder):
    """By name: the steps and losses that they tell of."""
    lines = {file.name: map(json.loads, file.read_text().splitlines()) for file in folder.glob("log-*")}
    return {name: [(line["step"], line["loss"]) for line in some] for name, some in lines.items()}


@pytest.fixture
def logged(model, tmp_path, monkeypatch):
    """logged(recipe, seeds) -> what stands in the saved logs; with after=notes, the run is stopped after so many."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def go(recipe, seeds=(0,), out="encoder", after=None):
        heard = []

        def on_progress(note):
            heard.append(note)
            if len(heard) == after:
                raise KeyboardInterrupt

        train(Plan("toy", recipe=recipe), toy_data(), model, tmp_path / out, seeds=seeds, on_progress=on_progress)
        return logs_of(tmp_path / out)

    return go


def test_the_log_is_that_of_the_run_which_made_the_encoder(logged):
    """Whatever else was begun in the same place, and however often."""
    mine, other = small_recipe("soft_prompt", every=1), small_recipe("soft_prompt", every=1, tokens=3)
    expected = logged(mine, out="alone"), logged(other, out="other")
    assert expected[0] != expected[1] and [step for step, _ in expected[0]["log-0.jsonl"]] == [1, 2, 3, 4, 5, 6]
    for recipe, steps in ((mine, 3), (other, 4), (mine, 2)):
        with pytest.raises(KeyboardInterrupt):
            logged(recipe, after=steps)
    assert logged(other) == expected[1]


def test_a_seed_that_was_not_asked_for_again_has_no_log(logged):
    recipe = small_recipe("soft_prompt", every=1)
    expected = logged(recipe, out="alone")
    with pytest.raises(KeyboardInterrupt):
        logged(recipe, seeds=(0, 1), after=10)
    assert logged(recipe) == expected


def test_runs_on_other_data_have_other_checkpoints(model):
    """Negatives and groups are data, even where the texts are the same."""
    plain = toy_examples()
    swapped = [example._replace(negatives=(plain[number - 5].positive,)) for number, example in enumerate(plain)]
    others = [example._replace(negatives=(plain[number - 6].positive,)) for number, example in enumerate(plain)]
    alone = [example._replace(group=number) for number, example in enumerate(swapped)]
    keys = {
        Trainer(small_recipe("lora"), toy_data(contrastive=ContrastiveExamples.of(examples)), model)._key(seed)
        for examples in (swapped, others, alone)
        for seed in (0, 1)
    }
    assert len(keys) == 6


# --- from a plan ----------------------------------------------------------------------------------------------------


def test_a_plan_names_a_recipe_and_its_settings():
    plan = read_plan(None, ["tokens=3", "training.epochs=7", 'objective.name="cosent"'], recipe="soft_prompt")
    assert (plan.recipe_name, plan.recipe.tokens, plan.recipe.training.epochs) == ("soft_prompt", 3, 7)
    assert plan.recipe.training.rate == 1e-2, "the rest of the schedule is the recipe's own"
    assert plan.wants() == ["pairs"] and read_plan(None, recipe="lora").wants() == ["contrast"]


def test_the_best_seed_on_dev_is_kept_and_the_card_names_the_model(model, tmp_path):
    schedule = Schedule(epochs=1, batch=24, rate=0.1, patience=9)
    recipe = small_recipe("full", training=schedule, read=ReadSettings(layer=2, normed=False))
    data = toy_data(test=(toy_pairs("test"),))
    outcome = train(Plan("toy", recipe=recipe), data, model, tmp_path / "encoder", seeds=(0, 1))
    by_dev = max(outcome.results["seeds"], key=lambda seed: seed["dev"]["dev"]["spearman"])
    assert outcome.results["best_seed"] == by_dev["seed"]
    assert by_dev["test"]["test"] == by_dev["dev"]["dev"], "which are the same pairs here"
    card = (tmp_path / "encoder" / "README.md").read_text()
    assert "# toy: an encoder made of tiny-llama\n" in card and str(tmp_path) not in card
    below = sum(
        p.numel() for name, p in model.model.named_parameters() if not name.startswith(("layers.2", "layers.3"))
    )
    assert outcome.record["parameters"]["trained"] == below - 32, "two blocks and the embeddings, without the norm"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]
