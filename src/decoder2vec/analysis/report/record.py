"""What is known of a finished training run, read from the JSON documents that `d2v train` writes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoder2vec.analysis.place import Place

Scores = dict[str, dict[str, float]]
"""Points by file and metric."""


@dataclass(frozen=True)
class History:
    """Loss and score after each epoch of one stage; the untrained state scored `start`, and `best` counts from 0."""

    name: str
    stage: str
    losses: tuple[float, ...]
    scores: tuple[float, ...]
    start: float
    best: int


@dataclass(frozen=True)
class Seed:
    """What one seed came to."""

    number: int
    dev: Scores
    test: Scores
    checks: dict[str, float]
    histories: tuple[History, ...] = ()
    error: tuple[float, ...] = ()
    """Of the autoencoders, for each reading they were trained on."""
    unexplained: tuple[float, ...] = ()
    """The same as a share of the variance."""


@dataclass(frozen=True)
class Layers:
    """What each reading is worth on dev, in points; `raw` and `codes` by metric."""

    data: str
    raw: dict[str, tuple[float, ...]]
    codes: dict[str, tuple[float, ...]] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    without: tuple[float, ...] = ()
    everything: float | None = None


@dataclass(frozen=True)
class ScoredPair:
    """Two texts, what people say and what the encoder says, from 0 to 1."""

    left: str
    right: str
    truth: float
    score: float
    paper: float | None = None


@dataclass(frozen=True)
class Errors:
    """Errors of the calibrated score on one file, and the pairs with the largest."""

    data: str
    values: tuple[float, ...]
    worst: tuple[ScoredPair, ...]


@dataclass(frozen=True)
class Run:
    """One training run, with whatever its files hold."""

    name: str
    """Unique in a report."""
    plan: str
    path: Path
    backbone: str = ""
    command: str = ""
    metric: str = "pearson"
    """By which epochs and seeds were chosen."""
    head: str = ""
    best_seed: int | None = None
    notes: tuple[str, ...] = ()
    seeds: tuple[Seed, ...] = ()
    readings: tuple[Place, ...] = ()
    pretrained: tuple[Place, ...] = ()
    """The readings autoencoders were trained on: more than `readings` where some were selected afterwards."""
    layers: Layers | None = None
    errors: Errors | None = None
    examples: tuple[ScoredPair, ...] = ()
    trained: int | None = None
    frozen: int | None = None
    recorded: bool = False
    """Was there a record of the best seed (run.json)? A file of results has none."""


def add_record(run: Run, document: Any) -> Run:
    """The run with what its record (run.json) says of the best seed."""
    readings = tuple(Place(str(each["reading"]), int(each["layer"])) for each in document.get("readings", []))
    share = document.get("parameters")
    return replace(
        run,
        plan=str(document.get("name") or run.plan),
        readings=readings,
        layers=_layers(document["layers"], len(readings)) if document.get("layers") else None,
        errors=_errors(document["errors"]) if document.get("errors") else None,
        examples=tuple(map(_pair, document.get("examples", []))),
        trained=int(share["trained"]) if share else None,
        frozen=int(share["backbone"]) if share else None,
        recorded=True,
    )


def _layers(found: Any, count: int) -> Layers:
    def by_metric(curves: Any) -> dict[str, tuple[float, ...]]:
        return {metric: _numbers(curves[metric], count) for metric in ("pearson", "spearman") if metric in curves}

    return Layers(
        str(found.get("data", "dev")),
        by_metric(found.get("raw", {})),
        by_metric(found.get("codes", {})),
        _numbers(found.get("weights", []), count),
        _numbers(found.get("without", []), count),
        float(found["all"]) if "all" in found else None,
    )


def _errors(found: Any) -> Errors:
    values = tuple(value for value in _numbers(found["all"]) if math.isfinite(value))
    return Errors(str(found.get("data", "")), values, tuple(map(_pair, found.get("worst", []))))


def _pair(found: Any) -> ScoredPair:
    paper = found.get("paper")
    texts = str(found["left"]), str(found["right"])
    return ScoredPair(*texts, float(found["truth"]), float(found["score"]), None if paper is None else float(paper))


def _numbers(values: Any, count: int | None = None) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if count is not None and numbers and len(numbers) != count:
        raise ValueError(f"{len(numbers)} values for {count} readings")
    return numbers


def add_results(run: Run, document: Any) -> Run:
    """The run with the results of all seeds (results.json)."""
    config = document["config"]
    settings = config.get("freeze", {})
    seeds = tuple(map(_seed, document["seeds"]))
    count = max((len(seed.error) for seed in seeds), default=0)
    return replace(
        run,
        plan=str(config.get("name") or run.plan),
        backbone=str(document.get("backbone", {}).get("name", "")),
        command=str(document.get("command", "")),
        metric=str(settings.get("choose_by", run.metric)),
        head=str(settings.get("head", "")),
        best_seed=document.get("best_seed"),
        notes=tuple(map(str, document.get("notes", []))),
        seeds=seeds,
        pretrained=run.readings if len(run.readings) == count else _planned(settings.get("latents", []), count),
    )


def _planned(sources: Any, count: int) -> tuple[Place, ...]:
    """The readings of a plan, as far as it names them without knowing the model."""
    layers = [source.get("layers", "all") for source in sources]
    found = [
        Place(f"layer {layer}, {source.get('pooling', 'lasttoken')} of {source.get('template', 'plain')!r}", layer)
        for source, own in zip(sources, layers, strict=True)
        for layer in (range(1, count // len(layers) + 1) if own == "all" else own if isinstance(own, list) else ())
    ]
    return tuple(found) if len(found) == count else tuple(Place(f"reading {n}", n) for n in range(1, count + 1))


def _seed(found: Any) -> Seed:
    notes = found.get("notes", {})
    pretraining = notes.get("pretraining", {})
    names = ("pretraining", "training", "training after selection")
    autoencoders = pretraining if pretraining.get("stage") == "autoencoders" else {}
    return Seed(
        int(found["seed"]),
        _scores(found.get("dev", {})),
        _scores(found.get("test", {})),
        {str(name): float(value) for name, value in found.get("checks", {}).items()},
        tuple(_history(name, notes[name]) for name in names if notes.get(name, {}).get("losses")),
        _numbers(autoencoders.get("error", [])),
        _numbers(autoencoders.get("unexplained", []), len(autoencoders.get("error", []))),
    )


def _scores(found: Any) -> Scores:
    return {str(file): {str(m): float(v) for m, v in metrics.items()} for file, metrics in found.items()}


def _history(name: str, note: Any) -> History:
    return History(
        name,
        str(note.get("stage", "pairs")),
        _numbers(note["losses"]),
        _numbers(note.get("scores", [])),
        float(note.get("start", "nan")),
        int(note.get("best", -1)),
    )
