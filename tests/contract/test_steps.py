"""Encoders of single steps, of every recipe: each is the state after its step, and saving it changes no training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.reranker import Reranker
from decoder2vec.training.api import train
from decoder2vec.training.recipes import recipe as recipe_module
from decoder2vec.training.recipes import recipes
from decoder2vec.training.recipes.recipe import SeedRun, Trainer
from decoder2vec.training.results import SeedResult
from toys.contract import TOY_RECIPES

ROUNDING = 1e-5
"""On ARM torch takes other matrix products in a whole process once one in 16 bits has failed: the last bits change."""
pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


def with_steps(recipe, every=1):
    return replace(recipe, training=replace(recipe.training, save_every=every))


def assert_same_training(note, expected):
    """Saving changes no loss, score or random number; one that was drawn more would change the losses by far more."""
    rounded = dict.fromkeys(("start", "losses", "scores"))
    for name in rounded:
        np.testing.assert_allclose(note[name], expected[name], rtol=ROUNDING)
    assert note | rounded == expected | rounded


def outputs(model):
    """What a model computes: vectors, or scores of a reranker."""
    return np.asarray(model.score("cats sleep", TEXTS) if isinstance(model, Reranker) else model.encode(TEXTS))


@pytest.fixture
def states(monkeypatch):
    """Everything that is trained, after each step."""
    contexts, states = [], {}
    fit = SeedRun.fit

    def record_context(run, objective, context, *arguments, **options):
        contexts.append(context)
        return fit(run, objective, context, *arguments, **options)

    def record(state):
        module = contexts[-1].module
        states[state.step] = {name: value.clone() for name, value in module.state_dict().items()}

    monkeypatch.setattr(recipe_module.SeedRun, "fit", record_context)
    return states, record


@pytest.mark.parametrize("name", recipes())
def test_saved_steps_are_the_states_of_the_run_and_do_not_change_it(name, states, new_run, own_cache, tmp_path):
    toy, plain, (states, record) = TOY_RECIPES[name], new_run("tiny-llama"), states
    plain.train(name)
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    result = train(with_steps(toy.recipe), toy.data, backbone, tmp_path / "out", on_progress=record)
    note = result.results["seeds"][0]["notes"]["training"]
    assert_same_training(note, plain.history)
    np.testing.assert_allclose(outputs(result.model), outputs(plain.result.model), atol=ROUNDING)
    assert sorted(path.name for path in (tmp_path / "out-steps").iterdir()) == ["step-2", "step-4", "step-6"]
    trainer = Trainer(toy.recipe, toy.data, backbone)
    vectors = []
    for step in (2, 4, 6):
        context = toy.recipe.attach(trainer.corpus)
        context.module.load_state_dict(states[step])
        context.module.requires_grad_(False)
        expected = trainer.export(SeedResult(seed=0, model=context), tmp_path / f"work-{step}")[0]
        kind = Encoder if toy.makes_encoder else Reranker
        loaded = kind.load(tmp_path / "out-steps" / f"step-{step}", device="cpu", dtype="float32")
        vectors.append(outputs(loaded))
        np.testing.assert_allclose(vectors[-1], outputs(expected), atol=ROUNDING)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-4) and not np.allclose(vectors[1], vectors[2], atol=1e-4)


@pytest.mark.parametrize("name", ["lora", "full"])
@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-mamba"])
def test_other_families_train_on_as_without_saved_steps(name, family, new_run, own_cache, tmp_path):
    toy, plain = TOY_RECIPES[name], new_run(family)
    plain.train(name)
    backbone = Backbone.load(family, device="cpu", dtype="float32")
    result = train(with_steps(toy.recipe), toy.data, backbone, tmp_path / "out")
    assert_same_training(result.results["seeds"][0]["notes"]["training"], plain.history)
    np.testing.assert_allclose(outputs(result.encoder), outputs(plain.encoder), atol=ROUNDING)


def test_weights_are_trained_in_float32_beside_a_model_of_16_bits(own_cache, tmp_path):
    """Saving a step rounds the weights of its folder, not those that are trained."""
    toy = TOY_RECIPES["full"]
    small = replace(toy.recipe, training=replace(toy.recipe.training, rate=1e-4))  # changes that 16 bits do not hold
    histories = []
    for recipe in (small, with_steps(small)):
        backbone = Backbone.load("tiny-llama", device="cpu", dtype="bfloat16")
        result = train(recipe, toy.data, backbone, tmp_path / f"out-{recipe.training.save_every}")
        histories.append(result.results["seeds"][0]["notes"]["training"])
    assert_same_training(*histories)
    weights = load_file(tmp_path / "out-1-steps" / "step-6" / "backbone" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
