"""SimCSE against a plain InfoNCE; dropout in every step and in no score that is told; what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Objective
from scipy.special import logsumexp
from scipy.stats import spearmanr
from torch.utils.checkpoint import checkpoint

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.training import paths, processes
from decoder2vec.training.batch_encoder import Path
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data, sentences
from toys.training import gradients_of, module_and_task, small_recipe, toy_pairs

TEXTS = sentences()
LEARNED = [text for number, text in enumerate(TEXTS) if number % 6]
APART = list(TEXTS[::6])


def recipe_of(name="lora", *, objective=None, **changes):
    objective = Objective("simcse", **{"temperature": 0.2, **(objective or {})})
    return small_recipe(name, **{"objective": objective, "read": ReadSettings(pooling="mean"), **changes})


@pytest.fixture
def captured(monkeypatch):
    """All vectors that a training reads, in order."""
    found, plain = [], Path.__call__

    def call(path, rows):
        vectors = plain(path, rows)
        found.append(vectors.detach().double().numpy())
        return vectors

    monkeypatch.setattr(Path, "__call__", call)
    return found


def by_hand(vectors, temperature=0.2):
    """The first half of the vectors are first readings, the second half second ones; text by text."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    one, other = np.split(unit, 2)
    losses = []
    for number, first in enumerate(one):
        scores = [first @ second / temperature for second in other]
        losses.append(logsumexp(scores) - scores[number])
    return np.mean(losses)


def plain_vectors(model, texts, recipe):
    spec = Trainer(recipe, plain_data(), model)._spec()
    return Encoder(model.with_adapter(None), spec).encode(texts)


# --- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [("lora", "tiny-llama", "bidirectional"), ("kv_prefix", "tiny-llama", "causal"), ("full", "tiny-gpt2", "causal")],
)
def test_the_loss_is_the_infonce_of_two_readings_with_other_weights_dropped(
    name, family, attention, backbone, captured
):
    model, recipe = backbone(family, attention), recipe_of(name, attention=attention)
    module, task = module_and_task(recipe, plain_data(), model)
    captured.clear()
    loss, gradients = gradients_of(module, task, np.arange(8))
    (vectors,) = captured
    assert loss == pytest.approx(by_hand(vectors), rel=1e-5)
    one, other = np.split(vectors, 2)
    assert (np.abs(one - other).max(axis=1) > 0.01).all(), "every text is read in two ways"
    if name == "lora":
        plain = plain_vectors(model, LEARNED[:8], recipe)
        assert (np.abs(one - plain).max(axis=1) > 0.01).all() and (np.abs(other - plain).max(axis=1) > 0.01).all()
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())
    assert loss == gradients_of(module, task, np.arange(8))[0] != gradients_of(module, task, np.arange(8), seed=6)[0]


def test_settings_of_the_loss_are_heard(backbone, captured):
    model = backbone("tiny-llama")

    def loss(**objective):
        module, task = module_and_task(recipe_of(objective=objective), plain_data(), model)
        captured.clear()
        found = gradients_of(module, task, np.arange(8))[0]
        return found, captured[0]

    found, vectors = loss(temperature=0.7)
    assert found == pytest.approx(by_hand(vectors, 0.7), rel=1e-5)
    found, vectors = loss(dims=(32, 8))
    assert found == pytest.approx(by_hand(vectors) + by_hand(vectors[:, :8]), rel=1e-5)
    found, vectors = loss(symmetric=True)
    swapped = np.concatenate(np.split(vectors, 2)[::-1])
    assert found == pytest.approx((by_hand(vectors) + by_hand(swapped)) / 2, rel=1e-5)
    mild, strong = (np.abs(np.subtract(*np.split(loss(dropout=share)[1], 2))).mean() for share in (0.05, 0.6))
    assert 2 * mild < strong


def test_dropout_is_replayed_when_a_part_is_computed_again(backbone, monkeypatch):
    model, found, parts = backbone("tiny-llama"), [], []
    for compute in (checkpoint, lambda part, texts, **_: parts.append(texts) or part(texts)):
        monkeypatch.setattr(paths, "checkpoint", compute)
        found.append(gradients_of(*module_and_task(recipe_of(chunk=60), plain_data(), model), np.arange(8)))
    assert len(parts) > 2, "the batch was meant to be cut"
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, gradient in found[1][1].items():
        torch.testing.assert_close(found[0][1][name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


def test_two_processes_never_drop_the_same_weights_from_both_readings(backbone, monkeypatch):
    """Both begin with the same random numbers, and of two each has all first or all second readings."""
    module, task = module_and_task(recipe_of(), plain_data(), backbone("tiny-llama"))
    read, left = [], []
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(paths, "gather", lambda own, _: read.append(own.detach()) or torch.cat([own, own]))
    for rank in range(2):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        gradients_of(module, task, np.arange(8))
        left.append(torch.get_rng_state())
    one, other = read
    assert ((one - other).abs().amax(dim=1) > 0.01).all()
    assert torch.equal(*left), "what they draw together stays the same"


# --- scores ---------------------------------------------------------------------------------------------------------


def test_the_own_score_is_the_same_each_time_and_training_does_not_notice(backbone, captured):
    _, task = module_and_task(recipe_of(), plain_data(), backbone("tiny-llama"))
    captured.clear()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores = {task.score() for _ in range(3)}
    assert torch.equal(torch.get_rng_state(), before)
    assert len(captured) == 3 and captured[0].shape == (2 * len(APART), 32)
    assert len(scores) == 1 and scores.pop() == pytest.approx(-by_hand(captured[0]), rel=1e-5)
    assert not np.allclose(*np.split(captured[0], 2)), "texts that were set aside are read in two ways, too"


def test_on_dev_pairs_the_correlation_of_vectors_without_dropout_is_the_score(backbone, captured):
    pairs, model, recipe = toy_pairs(), backbone("tiny-llama"), recipe_of()
    _, task = module_and_task(recipe, plain_data(dev=(pairs,)), model)
    captured.clear()
    before = torch.get_rng_state()
    found = {task.score(), task.score()}
    assert torch.equal(torch.get_rng_state(), before) and (captured[0] == captured[1]).all()
    left, right = (plain_vectors(model, side, recipe) for side in (pairs.left, pairs.right))
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert len(found) == 1 and found.pop() == pytest.approx(100 * spearmanr(cosines, pairs.scores)[0], abs=1e-4)


@pytest.mark.parametrize("dev", [(), (toy_pairs(),)], ids=["own score", "dev pairs"])
def test_what_is_chosen_by_is_told(dev, backbone):
    result = Trainer(recipe_of(), plain_data(dev=dev), backbone("tiny-llama")).run(0)
    history = result.notes["training"]
    best = max(history["start"], *history["scores"])
    assert result.own_score == (None if dev else best)
    assert result.dev_mean("spearman") == pytest.approx(best, abs=0.02)
    encoder = result.encoder
    assert (encoder.encode(TEXTS) == encoder.encode(TEXTS)).all(), "dropout is for training only"


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["mamba", "mamba2", "falcon"])
def test_a_family_whose_attention_drops_nothing_is_refused_with_the_reason(family, backbone):
    said = f"Dropout in the attention of {family} cannot be switched on: a text read twice has the same vector"
    with pytest.raises(UnsupportedError, match=said):
        Trainer(recipe_of(), plain_data(), backbone(f"tiny-{family}")).run(0)


def test_a_text_too_short_to_lose_a_weight_is_no_reason_to_refuse(backbone):
    texts = ("x", "a", "b", *TEXTS)
    module_and_task(recipe_of(objective={"dropout": 0.005}), plain_data(texts), backbone("tiny-gpt2"))


@pytest.mark.parametrize(
    ("name", "texts", "said"),
    [
        ("soft_prompt", TEXTS, "simcse reads every token in every step"),
        ("lora", (), "simcse learns from plain texts, 4 or more; there are 0"),
        ("lora", ("a", "b", "b", " "), "there are 2"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(name, texts, said, backbone):
    with pytest.raises(InputError, match=said):
        Trainer(recipe_of(name), plain_data(texts), backbone("tiny-llama"))


@pytest.mark.parametrize("dropout", [0.0, 1.0, -0.2])
def test_a_share_that_is_none_or_all_is_refused(dropout):
    with pytest.raises(InputError, match="The share of dropped attention weights lies between 0 and 1, not at"):
        Objective("simcse", dropout=dropout)


def test_texts_are_learned_from_or_set_aside_and_none_is_both(backbone):
    training = Trainer(recipe_of(), plain_data((*TEXTS, *TEXTS, "", " \n")), backbone("tiny-llama"))
    assert (training.lesson.learned, training.lesson.apart) == (LEARNED, APART)
    many = Trainer(recipe_of(), plain_data(tuple(map(str, range(15_000)))), backbone("tiny-llama")).lesson
    assert len(many.apart) == 500 and len(many.learned) == 14_500 and many.apart[1] == "20"
