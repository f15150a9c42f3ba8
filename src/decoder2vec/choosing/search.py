"""The search: the best layer of every source, combinations of sources, and the controls they must be compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.choosing.aggregators import AGGREGATORS, Aggregator, linear_like, make_aggregator
from decoder2vec.choosing.probe import ProbeConfig, ProbeRun, head_features, standardise, train_probe
from decoder2vec.choosing.sources import Source
from decoder2vec.choosing.tasks import TargetTask
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.metrics import spearman
from decoder2vec.maths.transferability import logme
from decoder2vec.progress import current_progress

_QUICK_EXAMPLES = 1500
"""Training examples from which LogME is computed, at most."""
_RUN_WORK = 5.0
"""Work of training one probe, in texts that a model encodes."""


class _Trained:
    """Something that was trained with several seeds."""

    runs: list[ProbeRun]

    @property
    def valid(self) -> float:
        """Mean validation score x 100 over seeds."""
        return float(np.mean([run.valid for run in self.runs]))

    @property
    def test(self) -> float:
        """Mean test score x 100 over seeds."""
        return float(np.mean([run.test for run in self.runs]))


@dataclass
class LayerScore(_Trained):
    """One layer and pooling of one source, feeding the task alone."""

    source: str
    reading: Reading
    logme: float
    """Log evidence for each example, computed without training; only differences have a meaning."""
    runs: list[ProbeRun] = field(default_factory=list)
    """One for each seed; empty in quick mode."""

    @property
    def score(self) -> float:
        """What layers are ranked by: the validation score, or LogME if nothing was trained."""
        return self.valid if self.runs else self.logme

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        row: dict[str, Any] = {"source": self.source, **self.reading.to_json(), "logme": round(self.logme, 5)}
        for split in ("valid", "test") if self.runs else ():
            row[split] = [round(getattr(run, split), 2) for run in self.runs]
        return row


@dataclass
class Probe(_Trained):
    """Sources at fixed layers under one aggregator, trained with every seed."""

    name: str
    inputs: tuple[tuple[str, Reading], ...]
    """Source and reading of each input; a source may occur several times."""
    aggregator: str
    runs: list[ProbeRun]

    @property
    def spread(self) -> float:
        """Standard deviation of the validation scores over seeds."""
        return float(np.std([run.valid for run in self.runs]))

    @property
    def groups(self) -> dict[str, float]:
        """Mean test score x 100 of each group over seeds."""
        return {group: float(np.mean([run.groups[group] for run in self.runs])) for group in self.runs[0].groups}

    @property
    def weights(self) -> list[list[float]]:
        """[epoch, source] weights, the mean over the seeds that trained so long; empty without attention."""
        longest = max(len(run.weights) for run in self.runs)
        by_epoch = [[run.weights[epoch] for run in self.runs if epoch < len(run.weights)] for epoch in range(longest)]
        return [np.mean(rows, axis=0).tolist() for rows in by_epoch]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "sources": [{"source": source, **reading.to_json()} for source, reading in self.inputs],
            "aggregator": self.aggregator,
            "aggregator_parameters": self.runs[0].aggregator_parameters,
            "head_parameters": self.runs[0].head_parameters,
            "valid": [round(run.valid, 2) for run in self.runs],
            "test": [round(run.test, 2) for run in self.runs],
            "epochs": [run.epochs for run in self.runs],
            "groups": {group: round(score, 2) for group, score in self.groups.items()},
            "weights": [[round(weight, 4) for weight in row] for row in self.weights],
        }


@dataclass
class Choice:
    """What `choose` found: the layers of all sources, trained probes and their controls."""

    task: TargetTask
    base: str
    """The source that the others must beat: the first one."""
    config: ProbeConfig
    layers: list[LayerScore] = field(default_factory=list)
    """Every layer of every source, in order."""
    probes: list[Probe] = field(default_factory=list)
    """Best layers alone and combined, best on validation data first; empty in quick mode."""
    controls: list[Probe] = field(default_factory=list)
    """Base, base + linear layer, copies of the base, shuffled labels; empty in quick mode."""
    cosines: dict[str, float] = field(default_factory=dict)
    """Mean cosine of each source's vectors with those of `target`, at the best layer of the source."""
    target: str = ""
    """What `cosines` compare with: the model trained for the task if there is one, else the base."""
    seconds: float = 0.0
    averages: dict[str, float] = field(default_factory=dict)
    """LogME of the mean of all layers of each source, after every layer was standardised."""

    @property
    def is_quick(self) -> bool:
        """Whether nothing was trained."""
        return not self.probes

    def best_layer(self, source: str) -> LayerScore:
        """The best layer of a source: on validation data, or in quick mode by LogME."""
        rows = [row for row in self.layers if row.source == source]
        return max(rows, key=lambda row: row.score)

    @property
    def sources(self) -> list[str]:
        """Names of the sources, best first."""
        names = list(dict.fromkeys(row.source for row in self.layers))
        return sorted(names, key=lambda name: -self.best_layer(name).score)

    @property
    def winner(self) -> Probe:
        """The probe with the best validation score; test data have no influence."""
        return self.probes[0]

    def agreement(self) -> float | None:
        """Spearman correlation of LogME with validation scores over all layers and sources; None in quick mode."""
        if self.is_quick or len(self.layers) < 3:
            return None
        return spearman(np.array([row.logme for row in self.layers]), np.array([row.valid for row in self.layers]))

    def verdict(self) -> str:
        """Say in a sentence or two what should feed the task, and whether combining sources pays."""
        if self.is_quick:
            best = self.best_layer(self.sources[0])
            source = max(self.averages, key=lambda name: self.averages[name])
            better = f" The mean of the layers of {source} is better than any layer."
            more = better if self.averages[source] > best.logme else ""
            return f"By LogME, without training: {best.source}, {best.reading}.{more}"
        winner = self.winner
        lines = [f"Best on validation data: {winner.name}, {winner.valid:.1f} (test {winner.test:.1f})."]
        alone = max((probe for probe in self.probes if probe.aggregator == "none"), key=lambda probe: probe.valid)
        controls = [probe for probe in self.controls if probe.name != _SHUFFLED]
        rival = max((alone, *controls), key=lambda probe: probe.valid)
        gain, noise = winner.valid - rival.valid, max(winner.spread, rival.spread)
        if winner is alone:
            lines.append("Combining sources does not pay.")
        elif len(winner.inputs) == 1:
            difference = f"{winner.valid - alone.valid:+.1f} points against {alone.name}"
            lines.append(f"This is one linear layer on one source, {difference}; combining sources does not pay.")
        elif gain > noise:
            on_test = winner.test - rival.test
            confirmed = "test data agree" if on_test > 0 else "but test data do not confirm it"
            lines.append(
                f"It is {gain:.1f} points above {rival.name}, more than seeds differ ({noise:.1f}); {confirmed} "
                f"({on_test:+.1f})."
            )
        else:
            more = "as much, within what seeds differ" if gain > -noise else "more"
            lines.append(f"But {rival.name} has {more} ({rival.valid:.1f}), so the sources are not what helps.")
        return " ".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        agreement = self.agreement()
        return {
            "task": self.task.describe(),
            "base": self.base,
            "config": asdict(self.config),
            "verdict": self.verdict(),
            "best_layers": {name: self.best_layer(name).to_json() for name in self.sources},
            "probes": [probe.to_json() for probe in self.probes],
            "controls": [probe.to_json() for probe in self.controls],
            "cosines": {"target": self.target, **{name: round(value, 4) for name, value in self.cosines.items()}},
            "logme_spearman": None if agreement is None else round(agreement, 4),
            "averages": {name: round(value, 5) for name, value in self.averages.items()},
            "layers": [row.to_json() for row in self.layers],
            "seconds": round(self.seconds, 1),
        }


_SHUFFLED = "shuffled labels"


def search(
    sources: Sequence[Source],
    task: TargetTask,
    *,
    aggregators: Sequence[str] = AGGREGATORS,
    config: ProbeConfig | None = None,
    target: Source | None = None,
    quick: bool = False,
) -> Choice:
    """Find the layers and combinations of sources that serve a task best.

    Every layer is tried alone, and the best one of each source, by validation score, is used from there on: alone, with
    attention (which is then one linear layer), and in combinations of the best two, three, ... sources.

    Args:
        sources: The sources; the first is the base that the controls are made of.
        task: The target task.
        aggregators: How combinations are aggregated: names from AGGREGATORS.
        config: How probes are trained.
        target: A model that was trained for the task, for the cosines; by default the base.
        quick: Rank layers by LogME and train nothing.
    """
    for name in aggregators:
        if name not in AGGREGATORS:
            raise unknown_name("aggregator", name, AGGREGATORS)
    if not sources:
        raise InputError("There is nothing to choose from; give one or more models or encoders.")
    started = time.perf_counter()
    run = _Search(sources, task, tuple(aggregators), config or ProbeConfig())
    if not quick:
        run.check_dims()
    run.rank_layers()
    if not quick:
        with current_progress().phase("training"):
            run.train_layers()
            run.combine()
            run.add_controls()
    run.measure_cosines(target or sources[0])
    run.choice.seconds = time.perf_counter() - started
    return run.choice


def expect_search(n_sources: int, n_layers: int, n_aggregators: int, n_seeds: int) -> None:
    """Announce the work of a search to the progress of the caller; without seeds, nothing is trained."""
    progress = current_progress()
    progress.expect("ranking layers", n_sources * n_layers, kind="ranking")
    if n_seeds:
        n_probes = n_sources * (n_layers + 1) + (n_sources - 1) * n_aggregators + 3
        progress.expect("training", _RUN_WORK * n_seeds * n_probes)


class _Search:
    """A search under way."""

    def __init__(
        self, sources: Sequence[Source], task: TargetTask, aggregators: Sequence[str], config: ProbeConfig
    ) -> None:
        self.sources = {source.name: source for source in sources}
        self.task, self.aggregators, self.config = task, aggregators, config
        self.choice = Choice(task, sources[0].name, config)

    def check_dims(self) -> None:
        """Raise InputError if the sources cannot be aggregated, before anything is trained."""
        dims = [source.vectors(source.readings[0]).shape[1] for source in self.sources.values()]
        for name in self.aggregators:
            make_aggregator(name, dims)

    def rank_layers(self) -> None:
        """Compute LogME of every layer of every source, and of the mean of its layers."""
        progress = current_progress()
        with progress.phase("ranking layers"):
            for name, source in self.sources.items():
                total = torch.zeros(())
                for reading in source.readings:
                    vectors = self._vectors(name, reading)
                    self.choice.layers.append(LayerScore(name, reading, task_logme(vectors, self.task)))
                    total = total + vectors
                    progress.advance(1)
                self.choice.averages[name] = task_logme(total / len(source.readings), self.task)

    def train_layers(self) -> None:
        """Train a head on every layer of every source alone."""
        for row in self.choice.layers:
            row.runs = self._train([(row.source, row.reading)], "mean")

    def combine(self) -> None:
        """Train the best layers alone, with attention, and combined; set the probes, best first."""
        names = self.choice.sources
        best = {name: self.choice.best_layer(name) for name in names}
        probes = []
        for name in names:
            row = best[name]
            probes.append(Probe(f"{name} {_short(row.reading)}", ((name, row.reading),), "none", row.runs))
            if "attention" in self.aggregators:
                probes.append(self._probe([(name, row.reading)], "attention"))
        for count in range(2, len(names) + 1):
            inputs = [(name, best[name].reading) for name in names[:count]]
            probes += [self._probe(inputs, aggregator) for aggregator in self.aggregators]
        self.choice.probes = sorted(probes, key=lambda probe: -probe.valid)

    def add_controls(self) -> None:
        """Train what a gain must be compared with."""
        base = (self.choice.base, self.choice.best_layer(self.choice.base).reading)
        reference = self._reference()
        dims = [self._vectors(*each).shape[1] for each in reference.inputs]
        n_parameters = make_aggregator("attention", dims).n_parameters
        if len(dims) == 1:  # the query and the key of a single source change nothing
            n_parameters = dims[0] * (dims[0] + 1)
        alone = next(row for row in self.choice.layers if (row.source, row.reading) == base)
        copies = max(2, len(dims))
        winner = self.choice.winner
        linear = self._train([base], partial(linear_like, self._vectors(*base).shape[1], n_parameters))
        copied = self._train([base] * copies, "attention")
        aggregator = "mean" if winner.aggregator == "none" else winner.aggregator
        shuffled = self._train(winner.inputs, aggregator, shuffled=True)
        self.choice.controls = [
            Probe(f"base: {base[0]} {_short(base[1])}", (base,), "none", alone.runs),
            Probe("base + linear layer", (base,), "linear", linear),
            Probe(f"{copies} copies of the base", (base,) * copies, "attention", copied),
            Probe(_SHUFFLED, winner.inputs, winner.aggregator, shuffled),
        ]

    def _reference(self) -> Probe:
        """The probe whose parameters the controls have: the best one with attention, of several sources if any."""
        candidates = [probe for probe in self.choice.probes if probe.aggregator == "attention"] or self.choice.probes
        return max(candidates, key=lambda probe: (len(probe.inputs) > 1, probe.valid))

    def measure_cosines(self, target: Source) -> None:
        """Compare the vectors of each source with those of a model, at the best layer of the source."""
        self.choice.target = target.name
        units = np.unique(self.task.valid.units)
        rows = self.task.train.units
        for name in self.sources:
            reading = self.choice.best_layer(name).reading
            other = reading if reading in target.readings else target.readings[-1]
            left, right = self._vectors(name, reading), standardise(target.vectors(other), rows)
            if left.shape[1] == right.shape[1]:
                cosine = functional.cosine_similarity(left[units], right[units], dim=1)
                self.choice.cosines[name] = float(cosine.mean())

    def _probe(self, inputs: Sequence[tuple[str, Reading]], aggregator: str) -> Probe:
        names = " + ".join(f"{name} {_short(reading)}" for name, reading in inputs)
        return Probe(f"{aggregator} of {names}", tuple(inputs), aggregator, self._train(inputs, aggregator))

    def _train(
        self,
        inputs: Sequence[tuple[str, Reading]],
        aggregator: str | Callable[[], Aggregator],
        *,
        shuffled: bool = False,
    ) -> list[ProbeRun]:
        """One run for each seed."""
        vectors = [self._vectors(*each) for each in inputs]
        dims = [x.shape[1] for x in vectors]
        make = partial(make_aggregator, aggregator, dims) if isinstance(aggregator, str) else aggregator
        runs = []
        for seed in self.config.seeds:
            runs.append(train_probe(vectors, self.task, make, self.config, seed, shuffled=shuffled))
            current_progress().advance(_RUN_WORK)
        return runs

    def _vectors(self, name: str, reading: Reading) -> Tensor:
        return standardise(self.sources[name].vectors(reading), self.task.train.units)


def task_logme(vectors: Tensor, task: TargetTask) -> float:
    """Return LogME of [unit, dim] vectors for a task: of what its head reads, on training examples.

    Args:
        vectors: The vectors of all units.
        task: The target task.
    """
    rows = np.linspace(0, len(task.train) - 1, min(len(task.train), _QUICK_EXAMPLES)).round().astype(int)
    units = torch.from_numpy(task.train.units[rows])
    features = head_features([vectors[column] for column in units.unbind(1)], task.kind).double().numpy()
    targets = task.train.targets[rows]
    if task.kind != "regression":
        targets = np.eye(len(task.labels))[targets.astype(int)]
    deviation = features.std(axis=0)
    return logme(features / np.where(deviation > 1e-9, deviation, 1.0), targets, intercept=True)


def _short(reading: Reading) -> str:
    return f"layer {reading.layer} {reading.pooling}"
