"""Recipes that adapt a model: settings that raise, runs that diverge or fill the disk, logs and checkpoints."""

from __future__ import annotations

import json
import math

import pytest

from decoder2vec import tensor_files
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DivergedError, InputError, StorageError, UnknownNameError, UnsupportedError
from decoder2vec.maths.losses import info_nce
from decoder2vec.training import checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import objective_config
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data, toy_examples, toy_pairs


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


# --- settings that raise --------------------------------------------------------------------------------------------


def test_training_on_chunks_of_a_text_raises(model):
    with pytest.raises(InputError, match="trained on as a whole; set on_overflow to truncate or error"):
        Trainer(small_recipe("lora", read=ReadSettings(on_overflow="chunk")), toy_data(), model)


def test_a_prompt_that_cannot_see_the_text_raises():
    with pytest.raises(InputError, match="A prompt before the text never sees it under causal attention"):
        small_recipe("soft_prompt", place="prepend")
    with pytest.raises(InputError, match="The text never sees a prompt behind it under causal attention"):
        small_recipe("soft_prompt", output="text")
    small_recipe("soft_prompt", place="prepend", output="text")
    small_recipe("soft_prompt", place="prepend", attention="bidirectional")


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix"])
@pytest.mark.parametrize("tokens", [0, -3, 256, 5000])
def test_a_number_of_tokens_that_does_not_fit_raises(name, tokens, model):
    with pytest.raises(InputError, match=r"leave no room for a text|has 1 to 255 tokens|over the model's context"):
        Trainer(small_recipe(name, tokens=tokens), toy_data(), model).run(0)


@pytest.mark.parametrize("name", ["lora", "full"])
def test_reading_a_causal_layer_of_a_bidirectional_recipe_raises(name):
    """Weights are saved up to the layer that is read: no bidirectional layer would be left."""
    model = Backbone.load("tiny-llama", device="cpu")
    with pytest.raises(InputError, match="Layer 2 is causal with bidirectional:2"):
        Trainer(small_recipe(name, attention="bidirectional:2", read=ReadSettings(layer=2)), toy_data(), model)


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_reading_the_embeddings_raises(name, model):
    with pytest.raises(InputError, match="Layer 0 is the embeddings"):
        Trainer(small_recipe(name, read=ReadSettings(layer=0)), toy_data(), model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: small_recipe("soft_prompt", objective=objective_config({"name": "triplet"})),
        lambda: small_recipe("soft_prompt", attention="sideways"),
        lambda: small_recipe("soft_prompt", choose_by="kendall"),
        lambda: small_recipe("soft_prompt", read=ReadSettings(pooling="median")),
        lambda: small_recipe("soft_prompt", place="beside"),
    ],
    ids=["objective", "attention", "metric", "pooling", "place"],
)
def test_an_unknown_name_raises(make):
    with pytest.raises(UnknownNameError):
        make()


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"dropout": 1.0}, {"chunk": -1}])
def test_values_out_of_range_raise(wrong):
    with pytest.raises(InputError):
        small_recipe("lora", **wrong)
    with pytest.raises(InputError, match="temperature must be a number above 0"):
        ContrastiveConfig(temperature=0.0)


def test_compiled_and_checkpointed_blocks_together_raise():
    with pytest.raises(InputError, match="either compiled or checkpointed; set one of the two"):
        small_recipe("lora", compile_blocks=True, checkpoint_blocks=True)


def test_bidirectional_attention_of_a_causal_family_raises(backbone):
    recipe = small_recipe("soft_prompt", place="prepend", attention="bidirectional")
    with pytest.raises(UnsupportedError, match="gpt_neo cannot be read with bidirectional attention: its causal mask"):
        Trainer(recipe, toy_data(), backbone("tiny-gpt_neo"))


def test_a_prompt_before_a_bidirectional_text_learns(own_cache, tmp_path):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    recipe = small_recipe("soft_prompt", place="prepend", attention="bidirectional", read=ReadSettings(pooling="mean"))
    result = train(recipe, toy_data(), model, tmp_path / "encoder")
    losses = result.results["seeds"][0]["notes"]["training"]["losses"]
    assert losses[-1] < losses[0]
    loaded = Encoder.load(tmp_path / "encoder", device="cpu")
    assert loaded.spec.attention == "bidirectional"
    assert (loaded.encode(["cats sleep"]) == result.encoder.encode(["cats sleep"])).all()


# --- runs that diverge or fill the disk -----------------------------------------------------------------------------


@pytest.fixture
def run(model, tmp_path, monkeypatch):
    """run(spoil=None) -> (notes, encoder) of six steps, a checkpoint after each; `spoil` changes the fourth loss."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    default_work = tmp_path / "work"

    def run(spoil=None, work=default_work, steps=None):
        n_calls = 0

        def loss(*vectors, **options):
            nonlocal n_calls
            n_calls += 1
            value = info_nce(*vectors, **options)
            return spoil(value, vectors[0]) if spoil and n_calls == 4 else value

        monkeypatch.setattr("decoder2vec.training.objectives.contrastive.info_nce", loss)
        on_progress = (lambda state: steps.append(state.step)) if steps is not None else lambda _: None
        trainer = Trainer(small_recipe("soft_prompt", every=1), toy_data(), model)
        result = trainer.run(0, work=work, on_progress=on_progress)
        return result.notes, trainer.export(result, work)[0]

    run.checkpoints = lambda: list(default_work.glob("*.safetensors"))
    return run


def with_infinite_gradient(loss, vectors):
    """The same loss, with a gradient that is not finite."""
    return loss + (vectors.sum() * 0).sqrt()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda loss, _: loss * math.nan,
            "The loss of triplets is not finite in step 4 of 6; try a lower learning rate",
        ),
        (
            with_infinite_gradient,
            "The dev score of triplets is not finite after step 4 of 6; try a lower learning rate",
        ),
    ],
    ids=["loss", "gradient"],
)
def test_a_run_that_diverges_keeps_its_last_good_state(spoil, message, run, tmp_path):
    with pytest.raises(DivergedError, match=message) as error:
        run(spoil)
    assert f"the last good state is in {run.checkpoints()[0]}" in str(error.value)
    steps = []
    (notes, encoder), (whole_notes, whole_encoder) = run(steps=steps), run(work=tmp_path / "other")
    assert steps[0] == 4
    assert notes == whole_notes and encoder.fingerprint == whole_encoder.fingerprint


def test_a_full_disk_raises_and_keeps_the_last_checkpoint(run, monkeypatch, tmp_path):
    original, n_files = tensor_files.save_file, 0

    def save_until_full(tensors, file, **options):
        nonlocal n_files
        n_files += 1
        if n_files > 2:
            file.write_bytes(b"half a")
            raise OSError(28, "No space left on device")
        original(tensors, file, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "save_file", save_until_full)
        with pytest.raises(
            StorageError, match=r"cannot be written \(.*No space left.*\); free some disk space and run"
        ):
            run()
    assert len(run.checkpoints()) == 1, "and no half-written file beside it"
    steps = []
    (_, encoder), (_, whole_encoder) = run(steps=steps), run(work=tmp_path / "other")
    assert steps[0] == 3
    assert encoder.fingerprint == whole_encoder.fingerprint


# --- logs and checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture
def train_logs(model, tmp_path, monkeypatch):
    """train_logs(recipe, seeds, stop_after=None) -> (step, loss) of all lines of the saved logs, by their name."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def go(recipe, seeds=(0,), out="encoder", stop_after=None):
        n_calls = 0

        def on_progress(_):
            nonlocal n_calls
            n_calls += 1
            if n_calls == stop_after:
                raise KeyboardInterrupt

        train(recipe, toy_data(), model, tmp_path / out, seeds=seeds, on_progress=on_progress)
        logs = {file.name: map(json.loads, file.read_text().splitlines()) for file in (tmp_path / out).glob("log-*")}
        return {name: [(line["step"], line["loss"]) for line in lines] for name, lines in logs.items()}

    return go


def test_the_log_is_that_of_the_run_that_made_the_encoder(train_logs):
    """However many other runs were begun in the same folder."""
    recipe, other = small_recipe("soft_prompt", every=1), small_recipe("soft_prompt", every=1, tokens=3)
    expected, expected_other = train_logs(recipe, out="alone"), train_logs(other, out="other")
    assert expected != expected_other and [step for step, _ in expected["log-0.jsonl"]] == [1, 2, 3, 4, 5, 6]
    for begun, steps in ((recipe, 3), (other, 4), (recipe, 2)):
        with pytest.raises(KeyboardInterrupt):
            train_logs(begun, stop_after=steps)
    assert train_logs(other) == expected_other


def test_a_seed_that_was_not_requested_again_has_no_log(train_logs):
    recipe = small_recipe("soft_prompt", every=1)
    expected = train_logs(recipe, out="alone")
    with pytest.raises(KeyboardInterrupt):
        train_logs(recipe, seeds=(0, 1), stop_after=10)
    assert train_logs(recipe) == expected


def test_other_data_and_seeds_have_other_checkpoints(model, tmp_path):
    """Negatives and groups are data, even where the texts are the same."""
    examples = toy_examples()
    shifted, shifted_more = (
        [example._replace(negatives=(examples[i - step].positive,)) for i, example in enumerate(examples)]
        for step in (5, 6)
    )
    ungrouped = [example._replace(group=index) for index, example in enumerate(shifted)]
    for variant in (shifted, shifted_more, ungrouped):
        data = toy_data(contrastive=ContrastiveExamples.of(variant))
        assert set(data.contrastive.texts) == set(ContrastiveExamples.of(shifted).texts)
        for seed in (0, 1):
            Trainer(small_recipe("lora", epochs=0), data, model).run(seed, work=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 6


def test_best_seed_is_saved_and_the_card_names_the_model(model, tmp_path):
    schedule = Schedule(epochs=1, batch=24, rate=0.1, patience=9)
    recipe = small_recipe("full", training=schedule, read=ReadSettings(layer=2, normed=False))
    data = toy_data(test=(toy_pairs("test"),))
    result = train(Plan.of(recipe, "toy"), data, model, tmp_path / "encoder", seeds=(0, 1))
    best = max(result.results["seeds"], key=lambda seed: seed["dev"]["dev"]["spearman"])
    assert result.results["best_seed"] == best["seed"]
    assert best["test"]["test"] == best["dev"]["dev"], "which are the same pairs here"
    card = (tmp_path / "encoder" / "README.md").read_text()
    assert "# toy: an encoder made of tiny-llama\n" in card and str(tmp_path) not in card
    below = sum(
        parameter.numel()
        for name, parameter in model.model.named_parameters()
        if not name.startswith(("layers.2", "layers.3"))
    )
    assert result.record["parameters"]["trained"] == below - 32, "two blocks and the embeddings, without the norm"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]
