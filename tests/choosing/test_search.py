"""The search finds what was planted, reports honest controls, and leaves the sources unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.spans import TextSpan
from decoder2vec.choosing import search as module
from decoder2vec.choosing.aggregators import Attention, make_aggregator
from decoder2vec.choosing.probe import ProbeConfig, ProbeRun, standardise, train_probe
from decoder2vec.choosing.search import search, task_logme
from decoder2vec.choosing.tasks import Example, TargetTask
from decoder2vec.config import Reading
from decoder2vec.errors import DivergedError, EncoderError, InputError, UnknownNameError
from decoder2vec.maths.transferability import logme
from toys.choosing import classification_task, planted_source, unit_labels

FAST = ProbeConfig(epochs=12, seeds=(1, 2), rate=1e-2, aggregator_rate=3e-3)


@pytest.fixture(scope="module")
def planted(one_thread):
    task = classification_task()
    sources = [planted_source(task, "base", None, seed=1), planted_source(task, "good", 2, seed=2)]
    sources.append(planted_source(task, "other", None, seed=3))
    return search(sources, task, config=FAST)


def test_the_planted_source_and_layer_win(planted):
    best = planted.best_layer("good")
    assert best.reading == Reading(2) and best.valid > 90 and best.test > 90
    assert planted.sources[0] == "good"
    assert planted.winner.test > 85 and ("good", Reading(2)) in planted.winner.inputs
    assert "good layer 2" in planted.verdict()


def test_logme_finds_the_same_layer_without_training(planted):
    assert max(planted.layers, key=lambda row: row.logme) is planted.best_layer("good")
    quick = search([planted_source(planted.task, "good", 2, seed=2)], planted.task, quick=True)
    assert quick.is_quick and quick.best_layer("good").reading == Reading(2)
    assert quick.agreement() is None and quick.verdict() == "By LogME, without training: good, layer 2, mean."


def test_the_mean_of_layers_is_ranked_beside_them(planted):
    assert planted.averages["good"] < planted.best_layer("good").logme, "one layer holds the label"
    task, rng = planted.task, np.random.default_rng(0)
    layers = rng.normal(size=(4, len(task.units), 12)).astype(np.float32)
    layers[..., :3] += np.eye(3)[unit_labels(task)]  # in every layer, each with noise of its own
    layers *= np.array([1, 10, 0.1, 3])[:, None, None]
    noisy = module.Source("noisy", tuple(map(Reading, range(4))), layers.__getitem__)
    quick = search([noisy], task, quick=True)
    mean = torch.stack([standardise(layer, task.train.units) for layer in layers]).mean(dim=0)
    assert quick.averages == {"noisy": pytest.approx(task_logme(mean, task), abs=1e-6)}
    assert quick.averages["noisy"] > quick.best_layer("noisy").logme + 0.01
    assert quick.verdict().endswith("The mean of the layers of noisy is better than any layer.")
    assert quick.to_json()["averages"]["noisy"] == pytest.approx(quick.averages["noisy"], abs=1e-4)


def test_sources_of_other_dimensions_have_no_mean(monkeypatch):
    task = classification_task(60)
    sources = [planted_source(task, "a", 1), planted_source(task, "b", 2, dim=8)]
    config = ProbeConfig(epochs=2, seeds=(1,))
    combined = search(sources, task, aggregators=["attention", "concat"], config=config)
    assert {len(probe.inputs) for probe in combined.probes} == {1, 2}
    assert len(search(sources, task, quick=True).layers) == 8
    monkeypatch.setattr(module, "train_probe", None)  # nothing is trained before
    with pytest.raises(InputError, match="12 and 8 dimensions have no mean or sum"):
        search(sources, task, config=config)


def test_controls_are_always_there(planted):
    base, linear, copies, shuffled = planted.controls
    assert base.name.startswith("base: base") and linear.name == "base + linear layer"
    assert copies.name == f"{len(copies.inputs)} copies of the base" and {name for name, _ in copies.inputs} == {"base"}
    assert shuffled.name == "shuffled labels" and shuffled.inputs == planted.winner.inputs
    for control in (base, linear, copies, shuffled):
        assert control.test < 55  # three labels at random
    dims = [12] * len(copies.inputs)
    wanted = Attention(dims).n_parameters
    assert copies.runs[0].aggregator_parameters == wanted
    assert abs(linear.runs[0].aggregator_parameters - wanted) <= 13 / 2


def test_every_probe_has_all_seeds_and_layers_are_those_of_validation_data(planted):
    for probe in (*planted.probes, *planted.controls):
        assert [run.seed for run in probe.runs] == [1, 2]
    for source in ("base", "good", "other"):
        rows = [row for row in planted.layers if row.source == source]
        assert planted.best_layer(source).valid == max(row.valid for row in rows)
    assert [probe.valid for probe in planted.probes] == sorted((p.valid for p in planted.probes), reverse=True)


def test_attention_gives_the_planted_source_all_weight():
    task = classification_task(400)
    planted_layers = {"first": None, "good": 2, "third": None}
    sources = [planted_source(task, name, layer, seed=len(name)) for name, layer in planted_layers.items()]
    inputs = [standardise(source.vectors(Reading(2)), task.train.units) for source in sources]
    config = ProbeConfig(epochs=60, patience=60, rate=1e-2, aggregator_rate=3e-2)
    run = train_probe(inputs, task, lambda: make_aggregator("attention", [12] * 3), config, 1)
    assert run.weights[0][1] == pytest.approx(1 / 3, abs=0.15)
    assert run.weights[-1][1] > 0.9 and run.test > 90
    assert len(run.weights) == run.epochs + 1


def test_sources_are_bit_identical_after_training_and_get_no_gradient():
    task = classification_task(100)
    inputs = [standardise(planted_source(task, "a", 1).vectors(Reading(1)), task.train.units)]
    before = inputs[0].clone()
    train_probe(inputs, task, lambda: make_aggregator("attention", [12]), FAST, 1)
    assert torch.equal(inputs[0], before) and inputs[0].grad is None


def test_a_seed_gives_the_same_run_and_leaves_the_global_seed_alone():
    task = classification_task(100)
    inputs = [standardise(planted_source(task, "a", 1).vectors(Reading(1)), task.train.units)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    runs = [train_probe(inputs, task, lambda: make_aggregator("mean", [12]), FAST, 1) for _ in range(2)]
    assert runs[0] == runs[1]
    assert torch.equal(torch.rand(3), expected)


def test_test_data_have_no_influence():
    """The labels of the test split are replaced by noise: every choice stays the same."""
    task = classification_task()
    noise = np.random.default_rng(9).permutation(task.test.targets)
    other = TargetTask(**{**vars(task), "test": type(task.test)(task.test.units, noise, task.test.groups)})
    sources = [planted_source(task, "base", None, seed=1), planted_source(task, "good", 2, seed=2)]
    results = [search(sources, each, config=ProbeConfig(epochs=2, seeds=(1,))) for each in (task, other)]
    assert [p.name for p in results[0].probes] == [p.name for p in results[1].probes]
    assert [p.valid for p in results[0].probes] == [p.valid for p in results[1].probes]


@pytest.mark.parametrize("kind", ["regression", "span pair", "tagging"])
def test_other_kinds_learn_what_is_planted(kind):
    rng = np.random.default_rng(0)
    n, n_units = 300, 1 if kind == "tagging" else 2
    units = [[TextSpan(f"{side} {row}", (0, 4)) for side in range(n_units)] for row in range(n)]
    vectors = rng.normal(size=(n, n_units, 8)).astype(np.float32)
    signal = vectors[:, 0, 0] if kind == "tagging" else vectors[:, 0, 0] * vectors[:, -1, 0]
    if kind == "regression":
        targets = [float(value) for value in signal]
    else:
        targets = ["LOC" if value > 0 else "O" for value in signal]
    task = TargetTask.of("toy", kind, [Example(tuple(row), target) for row, target in zip(units, targets, strict=True)])
    index = {unit: row for row, unit in enumerate(task.units)}
    table = np.empty((len(index), 8), np.float32)
    for row in range(n):
        for side in range(n_units):
            table[index[units[row][side]]] = vectors[row, side]
    config = ProbeConfig(epochs=40, rate=1e-2)
    inputs = [standardise(table, task.train.units)]
    run = train_probe(inputs, task, lambda: make_aggregator("mean", [8]), config, 1)
    shuffled = train_probe(inputs, task, lambda: make_aggregator("mean", [8]), config, 1, shuffled=True)
    assert run.test > 75 and run.test > shuffled.test + 15
    assert task_logme(inputs[0], task) > task_logme(torch.randn_like(inputs[0]), task)


def test_task_logme_is_that_of_one_hot_targets_with_an_intercept():
    task = classification_task(100)
    x = standardise(planted_source(task, "a", 1).vectors(Reading(1)), task.train.units)
    features = x[torch.from_numpy(task.train.units[:, 0])].double().numpy()
    one_hot = np.eye(3)[task.train.targets.astype(int)]
    expected = logme(features / features.std(axis=0), one_hot, intercept=True)
    assert task_logme(x, task) == pytest.approx(expected, abs=1e-9)


def test_the_ranking_by_logme_agrees_with_training_over_graded_sources():
    """Layers that hold the label with more and more noise: both rank them by the noise."""
    task = classification_task(300)
    clean = planted_source(task, "x", 2).vectors(Reading(2))
    noise = np.random.default_rng(1).normal(size=(8, *clean.shape)).astype(np.float32)
    layers = [clean + level * noise[layer] for layer, level in enumerate((0, 1, 2, 3, 4, 6, 9, 20))]
    source = module.Source("x", tuple(Reading(layer) for layer in range(8)), lambda index: layers[index], "")
    result = search([source], task, config=ProbeConfig(epochs=15, rate=1e-2))
    assert result.agreement() >= 0.85


def test_the_result_is_json_and_names_everything(planted):
    document = planted.to_json()
    assert document["task"] == {
        "name": "toy",
        "kind": "classification",
        "metric": "accuracy",
        "labels": 3,
        "train": 144,
        "valid": 48,
        "test": 48,
    }
    assert len(document["layers"]) == 12 and len(document["controls"]) == 4
    assert set(document["cosines"]) == {"target", "base", "good", "other"}
    assert document["cosines"]["base"] == pytest.approx(1, abs=1e-3)
    weights = next(probe["weights"] for probe in document["probes"] if probe["weights"] and len(probe["sources"]) == 3)
    assert np.sum(weights, axis=1) == pytest.approx(np.ones(len(weights)), abs=1e-3)


def test_bad_arguments_are_one_sentence():
    task = classification_task(60)
    source = planted_source(task, "a", 1)
    with pytest.raises(InputError, match="nothing to choose from"):
        search([], task)
    with pytest.raises(UnknownNameError, match="attention"):
        search([source], task, aggregators=["atention"])
    with pytest.raises(InputError, match="no seeds"):
        ProbeConfig(seeds=())
    with pytest.raises(InputError, match="seed 1 is repeated; give every seed once"):
        ProbeConfig(seeds=(1, 2, 1))
    broken = np.full((len(task.units), 12), np.nan, np.float32)
    with pytest.raises(EncoderError, match="a, layer 0, mean: vectors are not finite"):
        search([module.Source("a", (Reading(0),), lambda _: broken, "")], task)
    huge = [torch.full((len(task.units), 12), torch.inf)]
    with pytest.raises(DivergedError, match="smaller rate"):
        train_probe(huge, task, lambda: make_aggregator("mean", [12]), FAST, 1)


@pytest.mark.parametrize(
    ("combined", "inputs", "alone", "ending"),
    [
        ((70.0, 68.0), 2, (60.0, 61.0), "more than seeds differ (1.0); test data agree (+7.0)."),
        ((70.0, 60.0), 2, (60.0, 61.0), "more than seeds differ (1.0); but test data do not confirm it (-1.0)."),
        (
            (60.5, 60.0),
            2,
            (60.0, 61.0),
            "what seeds differ (60.0), so the sources are not what helps.",
        ),
        ((70.0, 68.0), 1, (60.0, 61.0), "+10.0 points against a; combining sources does not pay."),
        ((50.0, 50.0), 2, (60.0, 61.0), "Combining sources does not pay."),
    ],
)
def test_verdicts(combined, inputs, alone, ending):
    """Validation and test score of a combination and of a source alone; two seeds differ by 2 points."""

    def probe(name, scores, n_inputs, aggregator):
        valid, test = scores
        runs = [ProbeRun(seed, valid + shift, test + shift, {}, 1, 0, 0) for seed, shift in ((1, -1), (2, 1))]
        return module.Probe(name, (("a", Reading(1)),) * n_inputs, aggregator, runs)

    probes = [probe("mean of a + b", combined, inputs, "mean"), probe("a", alone, 1, "none")]
    probes.sort(key=lambda one: -one.valid)
    controls = [probe("base: base", (40.0, 40.0), 1, "none"), probe("shuffled labels", (99.0, 99.0), 1, "none")]
    assert module.Choice(classification_task(), "base", FAST, [], probes, controls).verdict().endswith(ending)
