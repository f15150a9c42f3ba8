"""What is known of a finished training run, read from the JSON documents that `d2v train` writes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report.figures import Place
from decoder2vec.storage import read_json

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


_ENCODER, _RESULTS, _RECORD = "encoder.json", "results.json", "run.json"
_DEPTH = 2
_LADDER = re.compile(r"step[0-5]")


def find_runs(*places: Path) -> list[Run]:
    """Every run in some places, the steps of the ladder first.

    A place is an encoder, or holds encoders up to two levels down, or else files of results, or is such a file.
    """
    return _in_order([run for place in places for run in _runs_at(place)], places)


def runs_of_files(files: Sequence[Path], places: Sequence[Path]) -> list[Run]:
    """The runs that some files of results in those places belong to: of encoders, or else of the files alone."""
    folders = dict.fromkeys(file.parent for file in files if (file.parent / _ENCODER).is_file())
    runs = [_read_encoder(folder) for folder in folders]
    return _in_order(runs or [run for file in files if (run := _read_results(file))], places)


def _in_order(runs: Sequence[Run], places: Sequence[Path]) -> list[Run]:
    return sorted(_with_unique_names(runs, places), key=lambda run: (*_ladder_order(run.plan), run.name))


def _runs_at(folder: Path) -> list[Run]:
    if folder.is_file() and folder.suffix == ".json" and (run := _read_results(folder)):
        return [run]
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give an encoder made by `d2v train`, or a folder of them.")
    runs = [_read_encoder(place) for place in _encoders(folder, _DEPTH)]
    if not runs and (folder / _ENCODER).is_file():
        raise InputError(f"{folder} holds an encoder, but no record of training; give one made by `d2v train`.")
    if not runs:
        runs = [run for file in _json_files(folder, _DEPTH) if (run := _read_results(file))]
    if not runs:
        raise InputError(
            f"{folder} holds no run; give an encoder made by `d2v train`, JSON of `d2v eval`, or a folder of them."
        )
    return runs


def _ladder_order(plan: str) -> tuple[bool, str]:
    return not _LADDER.fullmatch(plan), plan


def _encoders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _ENCODER).is_file():
        if (folder / _RESULTS).is_file() or (folder / _RECORD).is_file():
            yield folder
    elif depth:
        for child in _folders(folder):
            yield from _encoders(child, depth - 1)


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    yield from sorted(file for file in folder.glob("*.json") if file.is_file() and not file.name.startswith("."))
    if depth:
        for child in _folders(folder):
            yield from _json_files(child, depth - 1)


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _with_unique_names(runs: Sequence[Run], places: Sequence[Path]) -> list[Run]:
    """Where two runs have the same name, the model tells them apart, or else where they lie."""
    named = [replace(run, name=run.plan) for run in runs]
    for detail in ("backbone", "path"):
        count = Counter(run.name for run in named)
        for number, run in enumerate(named):
            if count[run.name] > 1:
                more = run.backbone if detail == "backbone" else _within(run.path, places)
                named[number] = replace(run, name=f"{run.name}, {more}")
    return named


def _within(path: Path, places: Sequence[Path]) -> str:
    """Where a run lies in the place that was given, or that place where there are several."""
    inside = [path.relative_to(place) for place in places if path.is_relative_to(place)]
    return str(inside[0]) if len(places) == 1 and inside else str(path)


def _read_encoder(folder: Path) -> Run:
    run = Run("", folder.name, folder)
    record, results = folder / _RECORD, folder / _RESULTS
    if record.is_file():
        run = _parsed(record, lambda document: add_record(run, document))
    if results.is_file():
        before = run
        run = _parsed(results, lambda document: add_results(before, document))
    return run


def _read_results(file: Path) -> Run | None:
    """The run of a file as `d2v train --results` writes it; None if it is some other JSON."""
    document = read_json(file, "train again")
    if not isinstance(document, dict) or not {"config", "seeds"} <= document.keys():
        return None
    return _parsed(file, lambda found: add_results(Run("", file.stem, file), found))


def _parsed(file: Path, read: Callable[[Any], Run]) -> Run:
    try:
        return read(read_json(file, "train again"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(
            f"{file} is not what `d2v train` writes ({type(error).__name__}: {error}); train again."
        ) from None
