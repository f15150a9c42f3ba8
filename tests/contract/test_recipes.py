"""What every registered recipe promises, whatever it trains. Its toy is in tests/toys/contract.py."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.base_model import load_base_model
from decoder2vec.config import from_table, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.maths.metrics import METRICS
from decoder2vec.progress import Progress
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training.context import Reads
from decoder2vec.training.data import DATA_KINDS, TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes import recipe_class, recipes
from decoder2vec.training.recipes.recipe import Trainer
from toys.contract import TOY_RECIPES, linear_shapes
from toys.regression import equal_states, state_of
from toys.training import small_recipe, toy_data

FAMILIES = ("tiny-llama", "tiny-gpt2", "tiny-mamba")
CASES = [
    (name, family)
    for family in FAMILIES
    for name, toy in TOY_RECIPES.items()
    if family not in toy.unsupported and toy.makes_encoder  # rerankers: test_rerank.py
]
TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


class Killed(Exception):
    """Ends a run as a crash would."""


def test_every_registered_recipe_has_a_toy():
    assert set(TOY_RECIPES) == set(recipes()), "add a toy to tests/toys/contract.py"


# --- what a recipe declares -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_declares_what_plans_and_cards_need(name):
    kind, toy = recipe_class(name), TOY_RECIPES[name]
    assert kind.name == name and kind.about.endswith(".") and isinstance(kind.mergeable, bool)
    assert type(toy.recipe) is kind and is_dataclass(kind)
    with pytest.raises(FrozenInstanceError):
        toy.recipe.choose_by = "pearson"
    for recipe in (kind(), toy.recipe):
        assert isinstance(recipe.training, Schedule) and recipe.choose_by in METRICS
        assert isinstance(recipe.reads, Reads)
        assert recipe.needs() and set(recipe.needs()) <= set(DATA_KINDS)
        assert isinstance(recipe.objective_name, str) and recipe.objective_name
        assert recipe.attention is None or isinstance(recipe.attention, str)
        assert all(isinstance(note, str) for note in recipe.data_notes(toy.data))
        assert all(isinstance(value, str) for value in recipe.card_rows().values())


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_survives_json(name):
    for recipe in (recipe_class(name)(), TOY_RECIPES[name].recipe):
        table = json.loads(json.dumps(to_table(recipe)))
        assert from_table(type(recipe), table) == recipe


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_announces_the_phases_that_it_enters(name, backbone):
    toy = TOY_RECIPES[name]
    with Progress() as progress:
        toy.recipe.expect(toy.data, "", seeds=1)
        announced = {phase.name for phase in progress.phases}
        trainer = Trainer(toy.recipe, toy.data, backbone("tiny-llama"))
        trainer.compare_untrained(trainer.run(0))
    assert {"training", "evaluating", "final checks"} < announced
    assert {phase.name for phase in progress.phases} == announced
    assert all(phase.finished for phase in progress.phases)


IMPOSSIBLE = [(name, what) for name in TOY_RECIPES for what in TOY_RECIPES[name].impossible]


@pytest.fixture
def no_reading(monkeypatch):
    """Fail if a text is read."""

    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("a text is read")

    monkeypatch.setattr(Tokeniser, "__call__", fail)
    for kind in recipes().values():
        monkeypatch.setattr(kind, "prepare", fail)


@pytest.mark.parametrize(("name", "what"), IMPOSSIBLE, ids=map("-".join, IMPOSSIBLE))
def test_an_impossible_setting_raises_before_reading(name, what, own_cache, no_reading):
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    toy = TOY_RECIPES[name]
    with pytest.raises(InputError) as error:
        Trainer(toy.impossible[what], toy.data, backbone)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", recipes())
@pytest.mark.parametrize("missing", ["training data", "dev pairs"])
def test_missing_data_raise_before_reading(name, missing, backbone, no_reading):
    toy = TOY_RECIPES[name]
    data = TrainingData(None, toy.data.dev) if missing == "training data" else replace(toy.data, dev=())
    with pytest.raises(InputError, match=r"give (some|dev pairs|triplets or pairs)") as error:
        Trainer(toy.recipe, data, backbone("tiny-llama"))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", recipes())
def test_a_family_that_a_recipe_cannot_train_raises(name, new_run):
    for family in TOY_RECIPES[name].unsupported:
        with pytest.raises(UnsupportedError, match="mamba has no keys and values"):
            Trainer(TOY_RECIPES[name].recipe, TOY_RECIPES[name].data, new_run(family).backbone).run(0)


# --- what is trained ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def toy(case):
    return TOY_RECIPES[case[0]]


@pytest.fixture(scope="module")
def run(case, trained_run):
    return trained_run(*case)


def test_exactly_what_is_declared_is_trained(toy, run):
    expected = toy.declared(run.backbone)
    assert {name: tuple(tensor.shape) for name, tensor in run.start.items()} == expected
    assert run.result.record["parameters"]["trained"] == sum(map(np.prod, expected.values()))


def test_parameter_counts_equal_the_formulas(case, toy, run):
    assert run.result.record["parameters"]["trained"] == toy.n_trained(run.backbone)
    if case[0] == "lora":
        linear = sum(4 * (ins + outs) for _, ins, outs in linear_shapes(run.backbone))
        assert linear == {"tiny-llama": 8192, "tiny-gpt2": 8192, "tiny-mamba": 3872}[case[1]]


def test_only_what_is_declared_gets_gradients_and_all_changes(run):
    assert run.others_with_gradient == set(), "weights of the model have gradients"
    for name, start in run.start.items():
        gradient = run.gradients[-1][name]  # of the third step: in the first, half of LoRA is multiplied by zeros
        assert gradient is not None and gradient.abs().max() > 0, name
        assert not torch.equal(run.after_three[name], start), name


def test_the_model_is_bit_identical_after_training(run):
    assert equal_states(state_of(run.backbone.model), run.weights)
    assert (run.plain.encode(TEXTS) == run.plain_vectors).all()
    assert run.plain.fingerprint != run.encoder.fingerprint
    assert not any(parameter.requires_grad for parameter in run.backbone.model.parameters())


def test_the_loss_falls(run):
    losses = run.history["losses"]
    assert losses[-1] < 0.8 * losses[0]


# --- the encoder ----------------------------------------------------------------------------------------------------


def test_a_saved_encoder_gives_identical_vectors(run):
    vectors = run.loaded.encode(TEXTS)
    assert run.loaded.fingerprint == run.encoder.fingerprint
    assert (vectors == run.encoder.encode(TEXTS)).all()
    same_shape = vectors.shape == run.plain_vectors.shape
    assert not same_shape or not np.allclose(vectors, run.plain_vectors, atol=1e-2), "training changed them"


def test_reported_scores_are_those_of_the_saved_encoder(toy, run):
    pairs, loaded = toy.data.dev[0], run.loaded
    cosines = loaded.similarity_pairwise(loaded.encode(pairs.left), loaded.encode(pairs.right))
    dev = run.result.results["mean"]["dev"]["dev"]
    assert dev["pearson"] == pytest.approx(100 * np.corrcoef(cosines, pairs.scores)[0, 1], abs=0.02)
    assert dev["spearman"] == pytest.approx(max(run.history["start"], *run.history["scores"]), abs=0.02)


def test_order_batch_and_padding_do_not_change_a_vector(run, encode_padded, gap):
    alone = np.concatenate([run.encoder.encode([text]) for text in TEXTS])
    assert gap(run.encoder.encode(TEXTS[::-1])[::-1], alone) < 1e-4
    assert gap(run.encoder.encode(TEXTS, batch_size=1), alone) < 1e-4
    for side in ("right", "left"):
        assert gap(encode_padded(run.encoder, TEXTS, side), alone) < 1e-4


def test_odd_texts_have_finite_vectors(run):
    odd = ["", " ", "\n", "\0", "🐈‍⬛ étoile", "x" * 40, "<eos>", "{text}"]
    vectors = run.encoder.encode(odd)
    assert np.isfinite(vectors).all() and vectors.shape == (len(odd), run.encoder.dim)
    assert run.encoder.encode([]).shape == (0, run.encoder.dim)
    with pytest.raises(InputError, match="surrogate"):
        run.encoder.encode(["\ud83d"])


def test_a_long_text_is_truncated_where_the_adapter_leaves_room(case, toy, run):
    limit = 512 if case[1] == "tiny-mamba" else 256 - toy.extra_tokens
    assert run.encoder.max_seq_length == limit
    ids = run.backbone.tokenizer(" cat" * 600)["input_ids"]
    truncated = run.backbone.tokenizer.decode(ids[:limit], skip_special_tokens=True)
    assert (run.encoder.encode([" cat" * 600]) == run.encoder.encode([truncated])).all()


def test_a_later_stage_can_train_on_if_the_recipe_is_mergeable(toy, run, gap):
    if not type(toy.recipe).mergeable:
        with pytest.raises(UnsupportedError, match="cannot be merged into the weights"):
            load_base_model(run.folder, device="cpu")
        return
    backbone, _ = load_base_model(run.folder, device="cpu")
    assert backbone.adapter is None
    if run.encoder.head is None:
        merged = Encoder(backbone, run.encoder.spec).encode(TEXTS)
        assert gap(merged, run.encoder.encode(TEXTS)) < 1e-4
    else:
        assert equal_states(state_of(backbone.model), run.weights), "only a head was trained"


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_with_the_same_numbers(case, run, new_run):
    """Killed between two evaluations. This also shows that one seed always gives the same numbers."""
    again, steps = new_run(case[1]), []

    def kill(state):
        if state.step == 3:
            raise Killed

    with pytest.raises(Killed):
        again.train(case[0], kill)
    assert not again.folder.exists()
    assert equal_states(state_of(again.backbone.model), run.weights), "a killed run leaves the model unchanged"
    again.train(case[0], lambda state: steps.append(state.step))
    assert steps[0] == 4, "it resumes"
    assert again.history == run.history
    assert again.encoder.fingerprint == run.encoder.fingerprint
    assert (again.encoder.encode(TEXTS) == run.encoder.encode(TEXTS)).all()


@pytest.mark.parametrize("name", recipes())
def test_another_seed_gives_another_encoder(name, backbone, tmp_path):
    toy = TOY_RECIPES[name]
    trainer = Trainer(toy.one_step(choose_by="pearson"), toy.data, backbone("tiny-gpt2"))
    results = [trainer.run(seed) for seed in (0, 0, 1)]
    first, again, other = (result.notes for result in results)
    assert first == again != other
    encoders = [trainer.export(result, tmp_path / str(index))[0] for index, result in enumerate(results)]
    first, again, other = (encoder.fingerprint for encoder in encoders)
    assert first == again != other


@pytest.mark.parametrize("name", ["lora", "bottleneck", "conv"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_adapter_that_starts_at_zero_is_the_model_itself(name, family, backbone, tmp_path):
    model = backbone(family)
    trainer = Trainer(small_recipe(name, epochs=0), toy_data(), model)
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    plain = Encoder(model.with_adapter(None), encoder.spec)
    assert (encoder.encode(TEXTS) == plain.encode(TEXTS)).all()


def test_recipes_that_share_a_model_do_not_change_each_other(tmp_path):
    """Each is trained on a model that holds those before it, and gives the vectors of one that was trained alone."""
    shared = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
    order = ("lora", "soft_prompt", "freeze", "kv_prefix", "bottleneck", "conv", "full", "lora")
    assert set(order) == {name for name, toy in TOY_RECIPES.items() if toy.makes_encoder}

    def train_once(name, backbone, work):
        toy = TOY_RECIPES[name]
        trainer = Trainer(toy.one_step(), toy.data, backbone)
        result = trainer.run(3)
        return result, *trainer.export(result, work)

    trained = [train_once(name, shared, tmp_path / f"shared-{index}") for index, name in enumerate(order)]
    vectors = [encoder.encode(TEXTS) for _, encoder, _ in trained]
    for index, name in list(enumerate(order))[1:]:
        result, encoder, _ = trained[index]
        own = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
        expected_result, expected, _ = train_once(name, own, tmp_path / f"alone-{index}")
        assert (expected.encode(TEXTS) == vectors[index]).all()
        assert (encoder.encode(TEXTS) == vectors[index]).all(), "and later ones did not change it"
        assert expected_result.n_trained == result.n_trained
        assert expected.fingerprint == encoder.fingerprint
    index = order.index("full")
    _, encoder, has_own_weights = trained[index]
    assert has_own_weights
    encoder.save(tmp_path / "encoder", copy_backbone=True)
    assert (Encoder.load(tmp_path / "encoder", device="cpu").encode(TEXTS) == vectors[index]).all()


def test_a_trained_copy_is_not_mistaken_for_its_original(backbone, tmp_path):
    """Its weights are on no disk until they are exported; a folder that only names the model is not the encoder."""
    toy = TOY_RECIPES["full"]
    trainer = Trainer(toy.one_step(), toy.data, backbone("tiny-gpt2"))
    result = trainer.run(0)
    spec = trainer.export(result, tmp_path / "work")[0].spec
    encoder = Encoder(result.model.backbone, spec)
    assert encoder.fingerprint != Encoder(backbone("tiny-gpt2"), spec).fingerprint
    encoder.save(tmp_path / "encoder")
    with pytest.raises(BackboneError, match="are not those this encoder was made with"):
        Encoder.load(tmp_path / "encoder", device="cpu")
