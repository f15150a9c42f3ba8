"""Autoencoders on cached latents: loss, dev metric and reported errors worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.training.objectives import autoencoder
from decoder2vec.training.objectives.autoencoder import (
    AutoencoderConfig,
    AutoencoderObjective,
    Decoders,
    reconstruction_error,
)
from toys.codes import LATENTS, latent_context, latent_task, layer_linear, reading_position


@pytest.fixture
def latents(backbone, data):
    """latents(**changes) -> a code network on cached latents."""
    return lambda **changes: latent_context(backbone("tiny-llama"), data, **changes)


def mean_errors(decoders, net, latents):
    """[readings] mean squared residuals, in the order of the readings."""
    errors = torch.zeros(len(net.spec.widths))
    for residuals, group in zip(decoders.residuals(net, latents), net.spec.groups, strict=True):
        errors[list(group)] = residuals.pow(2).mean(dim=(1, 2))
    return errors


@torch.no_grad()
def test_error_is_mean_squared_error_of_each_layer(latents):
    context = latents(hidden=0)
    net, decoders = context.net, Decoders(context.net.spec).eval()
    batch = context.table.batch(np.arange(6))
    standardised = ((batch - net.shift) * net.scale).numpy()
    expected = []
    for reading in range(4):
        group, position = reading_position(net.spec, reading)
        code = layer_linear(net.encoders[group].last, standardised[reading], position)
        rebuilt = layer_linear(decoders.decoders[group].last, code, position)
        expected.append(((rebuilt - standardised[reading]) ** 2).mean())
    np.testing.assert_allclose(mean_errors(decoders, net, batch).numpy(), expected, rtol=1e-4)


@torch.no_grad()
def test_unified_code_rebuilds_every_layer(latents):
    context = latents(hidden=0, mixing="unified", mixed_width=10)
    net, decoders = context.net, Decoders(context.net.spec).eval()
    batch = context.table.batch(np.arange(6))
    unified = net.mix(net.codes(batch))[0][0].double().numpy()
    standardised = ((batch - net.shift) * net.scale).numpy()
    expected = []
    for reading in range(4):
        group, position = reading_position(net.spec, reading)
        rebuilt = layer_linear(decoders.decoders[group].last, unified, position)
        expected.append(((rebuilt - standardised[reading]) ** 2).mean())
    np.testing.assert_allclose(mean_errors(decoders, net, batch).numpy(), expected, rtol=1e-4)


@torch.no_grad()
def test_loss_on_training_texts_and_dev_metric_on_held_out(latents, data):
    context = latents()
    objective = AutoencoderObjective(AutoencoderConfig(), data, LATENTS)
    task = latent_task(objective, context)

    def total_error(rows):
        return float(mean_errors(objective.decoders, context.net, context.table.batch(rows)).sum())

    held_out = context.rows(data.texts)[::20]
    assert (task.stage, task.n_examples) == ("autoencoders", len(data.texts) - len(held_out))
    assert task.dev_metric() == pytest.approx(-total_error(held_out), rel=1e-5)
    train = context.rows([text for index, text in enumerate(data.texts) if index % 20])
    batch = np.array([3, 0, 7, 12, 1])
    assert float(task.loss(batch)) == pytest.approx(total_error(train[batch]), rel=1e-5)


@torch.no_grad()
def test_error_of_many_rows_is_their_mean(latents, monkeypatch):
    context = latents()
    net, table, decoders = context.net, context.table, Decoders(context.net.spec).eval()
    rows = np.arange(11)
    monkeypatch.setattr(autoencoder, "_TEXTS_PER_PASS", 4)
    errors = reconstruction_error(net, decoders, table, rows).standardised
    by_row = torch.stack([mean_errors(decoders, net, table.batch(rows[[index]])) for index in range(11)])
    np.testing.assert_allclose(errors.numpy(), by_row.mean(dim=0).numpy(), rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"standardise": True}, {"unit_latents": True}], ids=str)
@torch.no_grad()
def test_raw_and_unexplained_errors(settings, latents):
    """Raw errors are in the latents' own units (unit latents: in those), unexplained ones a share of the variance."""
    unit_latents, standardise = settings.get("unit_latents", False), settings.get("standardise", False)
    context = latents(hidden=0, unit_latents=unit_latents)
    net, table, rows = context.net, context.table, np.arange(13)
    net.set_statistics(*table.moments(rows[:7]), standardise=standardise)
    decoders, batch = Decoders(net.spec).eval(), table.batch(rows)
    error = reconstruction_error(net, decoders, table, rows)
    rebuilt = net.normalise(batch).clone()
    for residuals, group in zip(decoders.residuals(net, batch), net.spec.groups, strict=True):
        rebuilt[list(group)] += residuals
    original, rebuilt = net.normalise(batch).double().numpy(), rebuilt.double().numpy()
    variance = ((original - original.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
    unexplained = ((rebuilt - original) ** 2).sum(axis=(1, 2)) / variance
    np.testing.assert_allclose(error.unexplained.numpy(), unexplained, rtol=1e-3)
    if not unit_latents:
        original, rebuilt = batch.numpy(), rebuilt / net.scale.numpy() + net.shift.numpy()
    np.testing.assert_allclose(error.raw.numpy(), ((rebuilt - original) ** 2).mean(axis=(1, 2)), rtol=1e-3)
