"""Losses on scored pairs equal plain loops: on the vectors of adapted models, and on the scores of pair heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training.data import TrainingData, check_data
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.scores import PairHeadConfig, PairHeadObjective, ScoresConfig
from decoder2vec.training.recipes.recipe import Trainer
from toys.codes import LATENTS, code_cosines, latent_context, latent_task
from toys.training import attached, module_and_task, small_recipe, toy_data, toy_pairs

BATCH = np.array([3, 0, 7, 12, 1])


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


# --- vectors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scored(make_pairs):
    """40 pairs with scores from 0 to 5, and dev pairs."""
    return check_data(TrainingData(make_pairs(), (toy_pairs(),)), (0.0, 5.0))


def scores_recipe(name, objective, *, dims=(), **changes):
    return small_recipe(name, objective=ScoresConfig(objective, dims=dims), **changes)


def test_cosine_mse_compares_with_scores_scaled_to_1(scored, model):
    recipe = scores_recipe("soft_prompt", "cosine_mse")
    context, _, task = attached(recipe, scored, model)
    with torch.no_grad():
        loss = task.loss(np.arange(10)).item()
    spec = recipe._encoder_spec(Trainer(recipe, scored, model).corpus)
    encoder, pairs = Encoder(context.backbone, spec), scored.train
    left, right = (encoder.encode(side[:10]) for side in (pairs.left, pairs.right))
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert loss == pytest.approx(np.mean((cosines - np.array(pairs.scores[:10]) / 5) ** 2), rel=1e-4)


@pytest.mark.parametrize("objective", ["cosent", "angle", "cosine_mse"])
def test_every_objective_on_pairs_is_learned(objective, scored, model):
    recipe = scores_recipe("lora", objective, dims=(32, 16), epochs=4, batch=20)
    losses = Trainer(recipe, scored, model).run(0).notes["training"]["losses"]
    assert losses[-1] < 0.9 * losses[0]


def test_objective_chooses_the_data_it_learns_from(scored, model):
    data = replace(scored, contrastive=toy_data().contrastive)
    stages = [
        module_and_task(small_recipe("lora", objective=config), data, model)[1].stage
        for config in (ContrastiveConfig(), ScoresConfig("angle"))
    ]
    assert stages == ["triplets", "pairs"]


def test_missing_pairs_fail(model):
    with pytest.raises(InputError, match="cosent learns from scored pairs"):
        Trainer(scores_recipe("lora", "cosent"), toy_data(), model)


def test_last_batch_never_has_a_single_pair(scored, model):
    task = module_and_task(scores_recipe("soft_prompt", "cosent"), scored, model)[1]
    assert [len(rows) for rows in task.batches(np.arange(40), 13)] == [13, 13, 14]


# --- pair heads on cached latents -----------------------------------------------------------------------------------


def pair_head_task(context, data, **config):
    config = PairHeadConfig(**{"loss": "mse", "choose_by": "pearson", **config})
    return latent_task(PairHeadObjective(config, data, LATENTS), context)


@torch.no_grad()
def test_loss_compares_scores_of_the_head_with_scaled_scores(model, data):
    context = latent_context(model, data)
    predicted = context.predict(context.pair_rows(data.train))[BATCH]
    target = np.array(data.train.scores)[BATCH] / 5
    losses = {
        loss: float(pair_head_task(context, data, loss=loss).loss(BATCH)) for loss in ("mse", "log_variance", "pearson")
    }
    assert losses["mse"] == pytest.approx(((predicted - target) ** 2).mean(), rel=1e-4)
    assert losses["log_variance"] == pytest.approx(np.log((predicted - target).var() + 1e-6), rel=1e-4)
    assert losses["pearson"] == pytest.approx(1 - stats.pearsonr(predicted, target).statistic, rel=1e-3)


@torch.no_grad()
def test_head_each_sums_the_losses_of_its_layers(model, data):
    context = latent_context(model, data, head="each")
    pairs = context.pair_rows(data.train)
    cosines = code_cosines(context, pairs.left[BATCH], pairs.right[BATCH])
    scores = 1 / (1 + np.exp(-(4 * cosines - 2)))
    target = np.array(data.train.scores)[BATCH, None] / 5
    expected = ((scores - target) ** 2).mean(axis=0).sum()
    assert float(pair_head_task(context, data).loss(BATCH)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("head", "metric"), [("sum", "spearman"), ("each", "pearson")])
def test_dev_metric_is_mean_correlation_over_dev_files(head, metric, model, data):
    """With the head "each", that of the best layer."""
    context = latent_context(model, data, head=head)
    data = replace(data, dev=(data.dev[0], data.test[0]))
    correlate = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    by_file = [
        [100 * correlate(column, pairs.scores).statistic for column in np.atleast_2d(predicted.T)]
        for pairs in data.dev
        for predicted in [context.predict(context.pair_rows(pairs))]
    ]
    expected = np.mean(by_file, axis=0)
    assert len(expected) == (4 if head == "each" else 1)
    assert pair_head_task(context, data, choose_by=metric).dev_metric() == pytest.approx(expected.max())
