"""Contrastive losses equal plain loops, on adapted models and on cached latents; which batches are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.data import TrainingData
from decoder2vec.training.objectives.contrastive import (
    ContrastiveConfig,
    LatentTripletsConfig,
    LatentTripletsObjective,
)
from decoder2vec.training.recipes.recipe import Trainer
from toys.codes import LATENTS, latent_context, latent_task
from toys.training import attached, module_and_task, small_recipe, toy_data, toy_examples, toy_pairs


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


# --- InfoNCE on adapted models --------------------------------------------------------------------------------------


def loss_and_encoder(recipe, data, model, rows):
    """The loss of a batch before the first step, and the encoder with the adapter as it is then."""
    context, _, task = attached(recipe, data, model)
    with torch.no_grad():
        loss = task.loss(np.asarray(rows)).item()
    spec = recipe._encoder_spec(Trainer(recipe, data, model).corpus)
    return loss, Encoder(context.backbone, spec)


def loss_by_hand(encoder, examples, temperature, dim=None):
    """InfoNCE example by example: texts of the same group and missing negatives are not negatives."""
    positives = {}
    for example in examples:
        positives.setdefault(example.group, set()).update((example.anchor, example.positive))

    texts = [text for example in examples for text in (example.anchor, example.positive, *example.negatives)]
    vectors = encoder.encode(texts)[:, :dim].astype(np.float64)
    vectors = dict(zip(texts, vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), strict=True))
    losses = []
    for example in examples:
        candidates = [other.positive for other in examples]
        for column in range(max(len(other.negatives) for other in examples)):
            candidates += [other.negatives[column] for other in examples if column < len(other.negatives)]
        negatives = [text for text in candidates if text not in positives[example.group]]
        scores = [vectors[example.anchor] @ vectors[text] / temperature for text in (example.positive, *negatives)]
        losses.append(logsumexp(scores) - scores[0])
    return np.mean(losses)


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix", "lora"])
def test_contrastive_loss_equals_a_loop(name, model):
    examples = toy_examples()
    examples[1] = examples[1]._replace(negatives=())
    examples[4] = examples[4]._replace(negatives=("rain falls", "a boat sails", examples[4].positive))
    rows = [0, 1, 4, 5, 9, 13]
    data = toy_data(contrastive=ContrastiveExamples.of(examples))
    recipe = small_recipe(name, objective=ContrastiveConfig(temperature=0.2))
    loss, encoder = loss_and_encoder(recipe, data, model, rows)
    assert loss == pytest.approx(loss_by_hand(encoder, [examples[row] for row in rows], 0.2), rel=1e-4)


def test_matryoshka_sums_the_losses_of_prefixes(model):
    recipe = small_recipe("soft_prompt", objective=ContrastiveConfig(temperature=0.2, dims=(32, 8, 2)))
    loss, encoder = loss_and_encoder(recipe, toy_data(), model, range(6))
    expected = sum(loss_by_hand(encoder, toy_examples()[:6], 0.2, dim) for dim in (32, 8, 2))
    assert loss == pytest.approx(expected, rel=1e-4)


def test_matryoshka_dimension_larger_than_the_model_fails(model):
    recipe = small_recipe("soft_prompt", objective=ContrastiveConfig(dims=(32, 64)))
    with pytest.raises(InputError, match="have 32 dimensions; lower the Matryoshka dimension 64"):
        Trainer(recipe, toy_data(), model).run(0)


def test_missing_examples_fail(model, make_pairs):
    with pytest.raises(InputError, match="info_nce learns from texts that belong together"):
        Trainer(small_recipe("lora"), TrainingData(make_pairs(), (toy_pairs(),)), model)


@pytest.mark.parametrize(("size", "sizes"), [(8, [8, 8, 8]), (7, [7, 7, 7, 3]), (23, [23]), (22, [22, 2]), (64, [24])])
def test_last_batch_is_dropped_if_too_small_to_contrast(size, sizes, model):
    task = module_and_task(small_recipe("soft_prompt", batch=size), toy_data(), model)[1]
    assert [len(rows) for rows in task.batches(np.arange(24), size)] == sizes


def test_small_batches_are_kept_if_all_are_small(model):
    """Examples with the same anchor are never in one batch."""
    examples = [Example("cats sleep", f"cats sleep {when}", ("dogs run",), "cats") for when in ("now", "here", "often")]
    data = toy_data(contrastive=ContrastiveExamples.of(examples))
    task = module_and_task(small_recipe("soft_prompt"), data, model)[1]
    assert [len(rows) for rows in task.batches(np.arange(3), 8)] == [1, 1, 1]


# --- triplets on cached latents -------------------------------------------------------------------------------------


def triplets_task(context, data, **config):
    config = LatentTripletsConfig(**{"choose_by": "pearson", **config})
    return latent_task(LatentTripletsObjective(config, data, LATENTS), context)


@torch.no_grad()
def test_triplet_loss_has_all_positives_and_negatives(model, data):
    context, batch = latent_context(model, data), np.array([3, 0, 7, 12, 1])
    task = triplets_task(context, data, temperature=0.1)
    assert (task.stage, task.n_examples) == ("triplets", 20)
    columns = [[data.triplets[row][column] for row in batch] for column in range(3)]
    anchors, positives, negatives = (context.encode(context.rows(texts)).double().numpy() for texts in columns)
    scores = anchors @ np.concatenate([positives, negatives]).T / 0.1
    expected = [np.log(np.exp(row).sum()) - row[index] for index, row in enumerate(scores)]
    assert float(task.loss(batch)) == pytest.approx(np.mean(expected), rel=1e-4)


@torch.no_grad()
def test_triplets_dev_metric_is_correlation_of_vector_cosines(model, data):
    """Whatever the pair head."""
    context = latent_context(model, data, head="mlp")
    dev = data.dev[0]
    left, right = (context.encode(context.rows(texts)).numpy() for texts in (dev.left, dev.right))
    expected = 100 * stats.pearsonr((left * right).sum(axis=1), dev.scores).statistic
    assert triplets_task(context, data).dev_metric() == pytest.approx(expected, abs=1e-3)
