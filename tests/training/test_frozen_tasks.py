"""The stages of FREEZE: their losses and scores, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoder2vec.training.frozen.autoencoders import Autoencoder, measure, reconstruction
from decoder2vec.training.frozen.tasks import (
    InferenceNet,
    ScoredRows,
    dev_scores,
    inference,
    predict,
    siamese,
    triplets,
)
from scipy import stats

from decoder2vec.activations.extract import Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.errors import DivergedError
from decoder2vec.heads.codes import CodeNet
from decoder2vec.text.template import Template
from decoder2vec.training.recipes.freeze import FreezeRecipe

RECIPE = FreezeRecipe(widths=(8, 16), hidden=12, head="sum", pretrain="none", loss="mse")
BATCH = np.array([3, 0, 7, 12, 1])


@pytest.fixture
def table(backbone, data):
    model = backbone("tiny-llama")
    return LatentTable(Reader(model, RECIPE.readings(model), Template("{text}")), data.all_texts())


def net_of(backbone, table, **changes):
    recipe = replace(RECIPE, **changes)
    torch.manual_seed(1)
    net = CodeNet(recipe.codes(backbone("tiny-llama")))
    mean, deviation = table.moments(np.arange(table.shape[1]))
    net.set_statistics(mean, deviation, standardise=recipe.standardise)
    if hasattr(net.pair, "logits"):
        torch.nn.init.normal_(net.pair.logits)
    return net.eval(), recipe


def linear(layer, x, number):
    return x @ layer.weight[number].double().numpy() + layer.bias[number].double().numpy()


def encoded(net, latents):
    """Unit codes of [reading, text, dim] latents by plain loops: linear, layer norm, GELU, linear."""
    codes = []
    for reading, width in enumerate(net.spec.widths):
        group = next(n for n, group in enumerate(net.spec.groups) if reading in group)
        place, encoder = net.spec.groups[group].index(reading), net.encoders[group]
        scale, shift = net.scale[reading].double().numpy(), net.shift[reading].double().numpy()
        x = (latents[reading].double().numpy() - shift) * scale
        x = linear(encoder.hidden[0], x, place)
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        x = x * encoder.norms[0].weight[place].double().numpy() + encoder.norms[0].bias[place].double().numpy()
        x = x * stats.norm.cdf(x)
        codes.append(linear(encoder.last, x, place))
        assert codes[-1].shape[1] == width
    return [code / np.linalg.norm(code, axis=1, keepdims=True) for code in codes]


def cosines_of(net, table, left, right):
    both = zip(encoded(net, table.batch(left)), encoded(net, table.batch(right)), strict=True)
    return np.stack([(a * b).sum(axis=1) for a, b in both], axis=1)


@torch.no_grad()
def value(task, batch=BATCH):
    return float(task.loss(batch))


# --- scored pairs ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_pairs_score_is_the_weighted_sum_of_its_layers_cosines(backbone, table, data):
    net, _ = net_of(backbone, table)
    rows = ScoredRows.of(table, data.dev[0])
    logits = net.pair.logits.double().numpy()
    weights = np.exp(logits) / np.exp(logits).sum()
    expected = cosines_of(net, table, rows.left, rows.right) @ weights
    np.testing.assert_allclose(predict(net, table, rows), expected, atol=1e-5)


@torch.no_grad()
def test_the_loss_of_a_batch_is_that_of_its_pairs_scores_and_fractions(backbone, table, data):
    net, recipe = net_of(backbone, table)
    predicted = predict(net, table, ScoredRows.of(table, data.train))[BATCH]
    wanted = np.array(data.train.scores)[BATCH] / 5
    found = {
        loss: value(siamese(net, table, data, data.train, replace(recipe, loss=loss)))
        for loss in ("mse", "log_variance", "pearson")
    }
    assert found["mse"] == pytest.approx(((predicted - wanted) ** 2).mean(), rel=1e-4)
    assert found["log_variance"] == pytest.approx(np.log((predicted - wanted).var() + 1e-6), rel=1e-4)
    assert found["pearson"] == pytest.approx(1 - stats.pearsonr(predicted, wanted).statistic, rel=1e-3)


@torch.no_grad()
def test_under_the_head_each_every_layer_has_a_loss_of_its_own(backbone, table, data):
    net, recipe = net_of(backbone, table, head="each")
    rows = ScoredRows.of(table, data.train)
    cosines = cosines_of(net, table, rows.left[BATCH], rows.right[BATCH])
    scores = 1 / (1 + np.exp(-(4 * cosines - 2)))
    wanted = np.array(data.train.scores)[BATCH, None] / 5
    expected = ((scores - wanted) ** 2).mean(axis=0).sum()
    assert value(siamese(net, table, data, data.train, recipe)) == pytest.approx(expected, rel=1e-4)


def test_the_score_is_the_mean_correlation_over_the_dev_files(backbone, table, data):
    net, recipe = net_of(backbone, table)
    both = replace(data, dev=(data.dev[0], data.test[0]))
    found = siamese(net, table, both, data.train, replace(recipe, choose_by="spearman")).score()
    expected = [
        100 * stats.spearmanr(predict(net, table, ScoredRows.of(table, pairs)), pairs.scores).statistic
        for pairs in both.dev
    ]
    assert found == pytest.approx(np.mean(expected))
    assert dev_scores(net, table, [ScoredRows.of(table, data.dev[0])], "spearman") == pytest.approx(expected[:1])


def test_under_the_head_each_the_best_layer_over_all_dev_files_counts(backbone, table, data):
    net, recipe = net_of(backbone, table, head="each")
    both = replace(data, dev=(data.dev[0], data.test[0]))
    columns = [predict(net, table, ScoredRows.of(table, pairs)).T for pairs in both.dev]
    expected = [
        np.mean(
            [
                100 * stats.pearsonr(of[layer], pairs.scores).statistic
                for of, pairs in zip(columns, both.dev, strict=True)
            ]
        )
        for layer in range(4)
    ]
    rows = [ScoredRows.of(table, pairs) for pairs in both.dev]
    np.testing.assert_allclose(dev_scores(net, table, rows, "pearson"), expected, rtol=1e-6)
    assert siamese(net, table, both, data.train, recipe).score() == pytest.approx(max(expected))


def test_scores_that_are_not_finite_are_refused_rather_than_called_uncorrelated(backbone, table, data):
    net, _ = net_of(backbone, table)
    net.pair.logits.data[0] = float("nan")
    with pytest.raises(DivergedError, match="no longer finite; try a lower learning rate"):
        predict(net, table, ScoredRows.of(table, data.dev[0]))


def test_predictions_do_not_depend_on_how_many_are_made_at_once(backbone, table, data, monkeypatch):
    net, _ = net_of(backbone, table)
    rows = ScoredRows.of(table, data.dev[0])
    whole = predict(net, table, rows)
    monkeypatch.setattr("decoder2vec.training.frozen.tasks._PAIRS_AT_ONCE", 3)
    np.testing.assert_allclose(predict(net, table, rows), whole, atol=1e-6)


# --- triplets -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_of_triplets_is_the_cross_entropy_over_all_positives_and_negatives(backbone, table, data):
    net, recipe = net_of(backbone, table)
    task = triplets(net, table, data, replace(recipe, temperature=0.1))
    assert (task.stage, task.count) == ("triplets", 20)
    roles = [[data.triplets[n][role] for n in BATCH] for role in range(3)]
    anchors, positives, negatives = (net(table.batch(table.rows(texts))).double().numpy() for texts in roles)
    scores = anchors @ np.concatenate([positives, negatives]).T / 0.1
    expected = [np.log(np.exp(row).sum()) - row[n] for n, row in enumerate(scores)]
    assert value(task) == pytest.approx(np.mean(expected), rel=1e-4)


@torch.no_grad()
def test_triplets_are_judged_by_the_embeddings_own_cosine_on_dev(backbone, table, data):
    net, recipe = net_of(backbone, table, head="mlp")
    dev = data.dev[0]
    left, right = (net(table.batch(table.rows(texts))).numpy() for texts in (dev.left, dev.right))
    expected = 100 * stats.pearsonr((left * right).sum(axis=1), dev.scores).statistic
    assert triplets(net, table, data, recipe).score() == pytest.approx(expected, abs=1e-3)


# --- inference ------------------------------------------------------------------------------------------------------


def test_the_loss_of_inferences_is_the_cross_entropy_of_the_mean_logits(backbone, table, data):
    net, recipe = net_of(backbone, table)
    judge = InferenceNet(net).eval()
    task = inference(judge, table, data, recipe)
    assert (task.stage, task.count) == ("inference", 28), "every twentieth row is held out"
    with torch.no_grad():
        found = float(task.loss(BATCH))
        rows = [row for number, row in enumerate(data.nli) if number % 20][:28]
        rows = [rows[n] for n in BATCH]
        u, v = (encoded(net, table.batch(table.rows([row[side] for row in rows]))) for side in (1, 2))
        logits = []
        for reading in range(4):
            group = next(n for n, group in enumerate(net.spec.groups) if reading in group)
            place = net.spec.groups[group].index(reading)
            joined = np.concatenate([u[reading], v[reading], np.abs(u[reading] - v[reading])], axis=1)
            logits.append(linear(judge.judges[group], joined, place))
    mean = np.mean(logits, axis=0)
    labels = [("entailment", "neutral", "contradiction").index(row[0]) for row in rows]
    expected = np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(mean, labels, strict=True)])
    assert found == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_inferences_are_judged_on_the_rows_held_out(backbone, table, data):
    net, recipe = net_of(backbone, table)
    judge = InferenceNet(net)
    for layer in judge.judges:
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([0.0, 0.0, 5.0]))
    held = [row[0] for row in data.nli[::20]]
    assert held == ["entailment", "contradiction"]
    assert inference(judge, table, data, recipe).score() == 50.0


# --- autoencoders ---------------------------------------------------------------------------------------------------


def errors(auto, latents):
    """[reading] mean squared residuals, in the order of the readings."""
    found = torch.zeros(len(auto.net.spec.widths))
    for part, group in zip(auto.residuals(latents), auto.net.spec.groups, strict=True):
        found[list(group)] = part.pow(2).mean(dim=(1, 2))
    return found


def test_the_reconstruction_error_is_the_mean_squared_one_of_each_layer(backbone, table, data):
    net, _ = net_of(backbone, table, hidden=0)
    auto = Autoencoder(net).eval()
    latents = table.batch(np.arange(6))
    with torch.no_grad():
        found = errors(auto, latents).numpy()
        wanted = ((latents - net.shift) * net.scale).numpy()
        expected = []
        for reading in range(4):
            group = next(n for n, group in enumerate(net.spec.groups) if reading in group)
            place = net.spec.groups[group].index(reading)
            code = linear(net.encoders[group].last, wanted[reading], place)
            built = linear(auto.decoders[group].last, code, place)
            expected.append(((built - wanted[reading]) ** 2).mean())
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_unified_autoencoder_decodes_every_layer_from_the_one_vector(backbone, table):
    net, _ = net_of(backbone, table, hidden=0, mixing="unified", mixed_width=10)
    auto = Autoencoder(net).eval()
    latents = table.batch(np.arange(6))
    with torch.no_grad():
        whole = net.mixed(net.codes(latents))[0][0].double().numpy()
        wanted = ((latents - net.shift) * net.scale).numpy()
        expected = []
        for reading in range(4):
            group = next(n for n, group in enumerate(net.spec.groups) if reading in group)
            built = linear(auto.decoders[group].last, whole, net.spec.groups[group].index(reading))
            expected.append(((built - wanted[reading]) ** 2).mean())
        np.testing.assert_allclose(errors(auto, latents).numpy(), expected, rtol=1e-4)


@torch.no_grad()
def test_texts_held_out_measure_the_reconstruction(backbone, table, data):
    net, recipe = net_of(backbone, table)
    auto = Autoencoder(net).eval()
    task = reconstruction(auto, table, data, recipe)
    count = len(data.texts)
    held = table.rows(data.texts)[::20]
    assert (task.stage, task.count) == ("autoencoders", count - len(held))
    assert task.score() == pytest.approx(-float(errors(auto, table.batch(held)).sum()), rel=1e-5)
    used = table.rows([text for number, text in enumerate(data.texts) if number % 20])
    assert value(task) == pytest.approx(float(errors(auto, table.batch(used[BATCH])).sum()), rel=1e-5)


@torch.no_grad()
def test_errors_over_many_rows_are_the_mean_of_each(backbone, table, monkeypatch):
    net, _ = net_of(backbone, table)
    auto = Autoencoder(net).eval()
    rows = np.arange(11)
    monkeypatch.setattr("decoder2vec.training.frozen.autoencoders._TEXTS_AT_ONCE", 4)
    found = measure(auto, table, rows).clean
    each = torch.stack([errors(auto, table.batch(rows[n : n + 1])) for n in range(11)])
    np.testing.assert_allclose(found.numpy(), each.mean(dim=0).numpy(), rtol=1e-4)


@torch.no_grad()
def test_noise_and_dropout_are_for_training_only(backbone, table, data):
    net, _ = net_of(backbone, table, noise=0.1, dropout=0.3)
    rows = ScoredRows.of(table, data.dev[0])
    first = predict(net.train(), table, rows)
    assert (first == predict(net.train(), table, rows)).all()
    latents = table.batch(np.arange(5))
    net.train()
    assert not torch.equal(net(latents), net(latents))


@pytest.mark.parametrize("choice", [{}, {"standardise": True}, {"unit_latents": True}])
@torch.no_grad()
def test_what_is_lost_is_said_in_the_latents_own_units_and_as_a_share(choice, backbone, table):
    standardise = choice.pop("standardise", False)
    net, _ = net_of(backbone, table, hidden=0, **choice)
    rows = np.arange(13)
    net.set_statistics(*table.moments(rows[:7]), standardise=standardise)
    auto, latents = Autoencoder(net).eval(), table.batch(rows)
    found = measure(auto, table, rows)
    clean, rebuilt = net.clean(latents), net.clean(latents).clone()
    for part, group in zip(auto.residuals(latents), net.spec.groups, strict=True):
        rebuilt[list(group)] += part
    clean, rebuilt = clean.double().numpy(), rebuilt.double().numpy()
    lost = ((rebuilt - clean) ** 2).sum(axis=(1, 2)) / ((clean - clean.mean(axis=1, keepdims=True)) ** 2).sum(
        axis=(1, 2)
    )
    np.testing.assert_allclose(found.unexplained.numpy(), lost, rtol=1e-3)
    own = rebuilt if choice else rebuilt / net.scale.numpy() + net.shift.numpy()
    wanted = clean if choice else latents.numpy()
    np.testing.assert_allclose(found.raw.numpy(), ((own - wanted) ** 2).mean(axis=(1, 2)), rtol=1e-3)
