"""Natural language inference on cached latents: loss and dev metric worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.training.objectives.inference import InferenceConfig, InferenceObjective
from toys.codes import LATENTS, latent_context, latent_task, layer_linear, reading_position, unit_codes

BATCH = np.array([3, 0, 7, 12, 1])


@pytest.fixture
def prepared(backbone, data):
    """(context, objective, task)."""
    context = latent_context(backbone("tiny-llama"), data)
    objective = InferenceObjective(InferenceConfig(), data, LATENTS)
    return context, objective, latent_task(objective, context)


@torch.no_grad()
def test_loss_is_cross_entropy_of_mean_logits(prepared, data):
    context, objective, task = prepared
    assert (task.stage, task.n_examples) == ("inference", 28), "every twentieth row is held out"
    train = [row for index, row in enumerate(data.nli) if index % 20]
    rows = [train[index] for index in BATCH]
    u, v = (unit_codes(context.net, context.table.batch(context.rows([row[side] for row in rows]))) for side in (1, 2))
    logits = []
    for reading in range(4):
        group, position = reading_position(context.net.spec, reading)
        features = np.concatenate([u[reading], v[reading], np.abs(u[reading] - v[reading])], axis=1)
        logits.append(layer_linear(objective.classifiers.classifiers[group], features, position))
    labels = [("entailment", "neutral", "contradiction").index(row[0]) for row in rows]
    mean = np.mean(logits, axis=0)
    expected = np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(mean, labels, strict=True)])
    assert float(task.loss(BATCH)) == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_dev_metric_is_accuracy_on_held_out_rows(prepared, data):
    _, objective, task = prepared
    for layer in objective.classifiers.classifiers:
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([0.0, 0.0, 5.0]))  # always contradiction
    assert [row[0] for row in data.nli[::20]] == ["entailment", "contradiction"]
    assert task.dev_metric() == 50.0
