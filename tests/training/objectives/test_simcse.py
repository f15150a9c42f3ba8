"""SimCSE equals a plain InfoNCE of two encodings; dropout is active in steps and never in an encoder's vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.utils.checkpoint import checkpoint

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.training import batch_encoder, distributed
from decoder2vec.training.batch_encoder import BatchEncoder
from decoder2vec.training.objectives.simcse import SimCSEConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data, sentences, split_twelve
from toys.training import (
    assert_same_gradients,
    gradients_of,
    info_nce_by_hand,
    module_and_task,
    small_recipe,
    toy_pairs,
)

TEXTS = sentences()
TRAIN_TEXTS, DEV_TEXTS = split_twelve(TEXTS)


def simcse_recipe(name="lora", *, objective=None, **changes):
    config = SimCSEConfig(**{"temperature": 0.2, **(objective or {})})
    return small_recipe(name, **{"objective": config, "read": ReadSettings(pooling="mean"), **changes})


@pytest.fixture
def encoded(monkeypatch):
    """The vectors of every batch that is encoded in training, in order."""
    batches, encode = [], BatchEncoder.__call__

    def call(encoder, rows):
        vectors = encode(encoder, rows)
        batches.append(vectors.detach().double().numpy())
        return vectors

    monkeypatch.setattr(BatchEncoder, "__call__", call)
    return batches


def vectors_without_adapter(model, texts, recipe):
    spec = recipe._encoder_spec(Trainer(recipe, plain_data(), model).corpus)
    return Encoder(model.with_adapter(None), spec).encode(texts)


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [("lora", "tiny-llama", "bidirectional"), ("kv_prefix", "tiny-llama", "causal"), ("full", "tiny-gpt2", "causal")],
)
def test_loss_is_infonce_of_two_encodings_with_dropout(name, family, attention, backbone, encoded):
    model, recipe = backbone(family, attention), simcse_recipe(name, attention=attention)
    module, task = module_and_task(recipe, plain_data(), model)
    encoded.clear()
    loss, gradients = gradients_of(module, task, np.arange(8))
    (vectors,) = encoded
    assert loss == pytest.approx(info_nce_by_hand(vectors), rel=1e-5)
    first, second = np.split(vectors, 2)
    assert (np.abs(first - second).max(axis=1) > 0.01).all(), "the two encodings of each text differ"
    if name == "lora":
        plain = vectors_without_adapter(model, TRAIN_TEXTS[:8], recipe)
        assert (np.abs(first - plain).max(axis=1) > 0.01).all() and (np.abs(second - plain).max(axis=1) > 0.01).all()
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())
    assert loss == gradients_of(module, task, np.arange(8))[0] != gradients_of(module, task, np.arange(8), seed=6)[0]


def test_settings_change_the_loss(backbone, encoded):
    model = backbone("tiny-llama")

    def loss_and_vectors(**objective):
        module, task = module_and_task(simcse_recipe(objective=objective), plain_data(), model)
        encoded.clear()
        loss = gradients_of(module, task, np.arange(8))[0]
        return loss, encoded[0]

    loss, vectors = loss_and_vectors(temperature=0.7)
    assert loss == pytest.approx(info_nce_by_hand(vectors, 0.7), rel=1e-5)
    loss, vectors = loss_and_vectors(dims=(32, 8))
    assert loss == pytest.approx(info_nce_by_hand(vectors) + info_nce_by_hand(vectors[:, :8]), rel=1e-5)
    loss, vectors = loss_and_vectors(symmetric=True)
    swapped = np.concatenate(np.split(vectors, 2)[::-1])
    assert loss == pytest.approx((info_nce_by_hand(vectors) + info_nce_by_hand(swapped)) / 2, rel=1e-5)
    weak, strong = (
        np.abs(np.subtract(*np.split(loss_and_vectors(dropout=share)[1], 2))).mean() for share in (0.05, 0.6)
    )
    assert 2 * weak < strong


def test_recomputed_chunks_have_the_same_dropout(backbone, monkeypatch):
    model, results, chunks = backbone("tiny-llama"), [], []
    for compute in (checkpoint, lambda encode, texts, **_: chunks.append(texts) or encode(texts)):
        monkeypatch.setattr(batch_encoder, "checkpoint", compute)
        results.append(gradients_of(*module_and_task(simcse_recipe(chunk=60), plain_data(), model), np.arange(8)))
    assert len(chunks) > 2, "the batch should be split"
    recomputed, kept = results
    assert_same_gradients(recomputed, kept)


def test_processes_drop_different_weights(backbone, monkeypatch):
    """Both start with the same random numbers; one has all first encodings, the other all second ones."""
    module, task = module_and_task(simcse_recipe(), plain_data(), backbone("tiny-llama"))
    vectors, random_states = [], []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(
        batch_encoder, "gather_rows", lambda local, _: vectors.append(local.detach()) or torch.cat([local, local])
    )
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        gradients_of(module, task, np.arange(8))
        random_states.append(torch.get_rng_state())
    first, second = vectors
    assert ((first - second).abs().amax(dim=1) > 0.01).all()
    assert torch.equal(*random_states), "the random numbers they share stay the same"


# --- dev metric -----------------------------------------------------------------------------------------------------


def test_dev_metric_is_fixed_and_leaves_random_state_alone(backbone, encoded):
    _, task = module_and_task(simcse_recipe(), plain_data(), backbone("tiny-llama"))
    encoded.clear()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores = {task.dev_metric() for _ in range(3)}
    assert torch.equal(torch.get_rng_state(), before)
    assert len(encoded) == 3 and encoded[0].shape == (2 * len(DEV_TEXTS), 32)
    assert len(scores) == 1 and scores.pop() == pytest.approx(-info_nce_by_hand(encoded[0]), rel=1e-5)
    assert not np.allclose(*np.split(encoded[0], 2)), "held-out texts are encoded with dropout, too"


def test_dev_pairs_are_scored_without_dropout(backbone, encoded):
    pairs, model, recipe = toy_pairs(), backbone("tiny-llama"), simcse_recipe()
    _, task = module_and_task(recipe, plain_data(dev=(pairs,)), model)
    encoded.clear()
    before = torch.get_rng_state()
    scores = {task.dev_metric(), task.dev_metric()}
    assert torch.equal(torch.get_rng_state(), before) and (encoded[0] == encoded[1]).all()
    left, right = (vectors_without_adapter(model, side, recipe) for side in (pairs.left, pairs.right))
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert len(scores) == 1 and scores.pop() == pytest.approx(100 * spearmanr(cosines, pairs.scores)[0], abs=1e-4)


@pytest.mark.parametrize("dev", [(), (toy_pairs(),)], ids=["own dev metric", "dev pairs"])
def test_result_has_the_score_it_is_selected_by(dev, backbone, tmp_path):
    trainer = Trainer(simcse_recipe(), plain_data(dev=dev), backbone("tiny-llama"))
    result = trainer.run(0)
    history = result.notes["training"]
    best = max(history["start"], *history["scores"])
    assert result.dev_metric == (None if dev else best)
    assert result.selection_score("spearman") == pytest.approx(best, abs=0.02)
    encoder, _ = trainer.export(result, tmp_path)
    assert (encoder.encode(TEXTS) == encoder.encode(TEXTS)).all(), "dropout is for training only"


# --- what cannot be trained -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["mamba", "mamba2", "falcon"])
def test_family_without_attention_dropout_fails(family, backbone):
    message = f"Dropout in the attention of {family} cannot be enabled: a text encoded twice has the same vector"
    with pytest.raises(UnsupportedError, match=message):
        Trainer(simcse_recipe(), plain_data(), backbone(f"tiny-{family}")).run(0)


def test_short_texts_do_not_fail_the_dropout_check(backbone):
    """A short text may happen to lose no weight."""
    texts = ("x", "a", "b", *TEXTS)
    module_and_task(simcse_recipe(objective={"dropout": 0.005}), plain_data(texts), backbone("tiny-gpt2"))


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("soft_prompt", TEXTS, "simcse encodes every token in every step"),
        ("lora", (), "simcse learns from plain texts, 4 or more; there are 0"),
        ("lora", ("a", "b", "b", " "), "there are 2"),
    ],
)
def test_unfit_recipe_or_texts_fail(name, texts, message, backbone):
    with pytest.raises(InputError, match=message):
        Trainer(simcse_recipe(name), plain_data(texts), backbone("tiny-llama"))


@pytest.mark.parametrize("dropout", [0.0, 1.0, -0.2])
def test_dropout_must_be_between_0_and_1(dropout):
    with pytest.raises(InputError, match="The share of dropped attention weights lies between 0 and 1, not at"):
        SimCSEConfig(dropout=dropout)


def test_texts_are_split_into_training_and_held_out(backbone):
    def objective_of(texts):
        return Trainer(simcse_recipe(), plain_data(texts), backbone("tiny-llama")).corpus.objective

    objective = objective_of((*TEXTS, *TEXTS, "", " \n"))
    assert (objective.train_texts, objective.dev_texts) == (TRAIN_TEXTS, DEV_TEXTS)
    large = objective_of(tuple(map(str, range(15_000))))
    assert len(large.dev_texts) == 500 and len(large.train_texts) == 14_500 and large.dev_texts[1] == "20"
