"""Find and read finished training runs from the JSON files that `d2v train` writes.

An encoder folder holds `results.json` (the scores of all seeds) and `run.json` (the record of the best seed). Result
files may also be kept elsewhere, without an encoder.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError
from decoder2vec.report.figures import ReadingLabel
from decoder2vec.storage import read_json

Scores = dict[str, dict[str, float]]
"""Points by file and metric."""
_ENCODER, _RESULTS, _RECORD = "encoder.json", "results.json", "run.json"
_METRICS_OF_OLDER_RESULTS = {
    "autoencoders": {"name": "error on held-out texts", "lower_is_better": True},
    "inference": {"name": "accuracy on held-out rows in %", "lower_is_better": False},
}
"""By stage: results of 0.1.0 do not name the metric. Its other stages selected by the correlation on dev pairs."""
_SEARCH_DEPTH = 2
_FREEZE_STEP = re.compile(r"step[0-5]")
"""Plans of the steps of FREEZE, which come first in a report."""


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and dev score at every evaluation of one training stage."""

    name: str
    stage: str
    losses: tuple[float, ...]
    scores: tuple[float, ...]
    start_score: float
    """Before training."""
    metric: str
    """What the scores are, with the unit."""
    lower_is_better: bool
    """Whether the scores are minus the metric, such as a loss."""
    best: int
    """Index of the selected evaluation; -1 if none was better than the start."""
    evaluate_every: int = 0
    """Steps between evaluations; 0: an epoch."""


@dataclass(frozen=True)
class SeedRecord:
    """The results of one seed."""

    seed: int
    dev: Scores
    test: Scores
    checks: dict[str, float]
    """Mean score of pairs with a known answer, by kind."""
    curves: tuple[TrainingCurve, ...] = ()
    reconstruction_error: tuple[float, ...] = ()
    """Of the autoencoders, by reading."""
    unexplained: tuple[float, ...] = ()
    """The same as a share of the variance."""


@dataclass(frozen=True)
class LayerScores:
    """Scores of every reading on dev, in points; `raw` and `codes` by metric."""

    data: str
    raw: dict[str, tuple[float, ...]]
    codes: dict[str, tuple[float, ...]] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    """In the sum over the readings."""
    without: tuple[float, ...] = ()
    """Of all other readings together."""
    all_readings: float | None = None


@dataclass(frozen=True)
class ExamplePair:
    """Two texts with their human score, the encoder's score, and perhaps the paper's, from 0 to 1."""

    text_a: str
    text_b: str
    human: float
    score: float
    paper: float | None = None


@dataclass(frozen=True)
class ScoreErrors:
    """Errors of the calibrated score on one file, and the pairs with the largest ones."""

    data: str
    values: tuple[float, ...]
    worst: tuple[ExamplePair, ...]


@dataclass(frozen=True)
class TrainingRun:
    """One training run, as far as its files describe it."""

    name: str
    """Unique in a report."""
    plan: str
    path: Path
    backbone: str = ""
    command: str = ""
    recipe: str = ""
    headline: str = ""
    """The score of the saved encoder, and what training changed."""
    metric: str = "pearson"
    """By which states and seeds were selected."""
    head: str = ""
    best_seed: int | None = None
    notes: tuple[str, ...] = ()
    seeds: tuple[SeedRecord, ...] = ()
    readings: tuple[ReadingLabel, ...] = ()
    autoencoder_readings: tuple[ReadingLabel, ...] = ()
    """More than `readings` if readings were selected after pre-training."""
    layers: LayerScores | None = None
    errors: ScoreErrors | None = None
    examples: tuple[ExamplePair, ...] = ()
    trained_parameters: int | None = None
    trained_share: float | None = None
    """Trained parameters in % of those of the model; None if unknown."""
    has_record: bool = False
    """Whether there is a record of the best seed (run.json)."""


def find_runs(*paths: Path) -> list[TrainingRun]:
    """Every run at the paths, the steps of FREEZE first.

    Args:
        paths: Encoder folders, folders with encoders up to two levels down, or else result files or folders of them.

    Raises:
        DataFileError: There is no run at a path, or one of its files is damaged.
    """
    return _sorted([run for path in paths for run in _runs_at(path)], paths)


def runs_of_results(files: Sequence[Path], paths: Sequence[Path]) -> list[TrainingRun]:
    """The runs that result files belong to: those of encoder folders, or if there are none, those of the files alone.

    Args:
        files: Result files.
        paths: The paths in which they were found, for unique names.
    """
    folders = dict.fromkeys(file.parent for file in files if (file.parent / _ENCODER).is_file())
    runs = [_read_encoder(folder) for folder in folders]
    return _sorted(runs or [run for file in files if (run := _read_results(file))], paths)


def _sorted(runs: Sequence[TrainingRun], paths: Sequence[Path]) -> list[TrainingRun]:
    named = _with_unique_names(runs, paths)
    return sorted(named, key=lambda run: (not _FREEZE_STEP.fullmatch(run.plan), run.plan, run.name))


def _runs_at(path: Path) -> list[TrainingRun]:
    if path.is_file() and path.suffix == ".json" and (run := _read_results(path)):
        return [run]
    if not path.is_dir():
        raise DataFileError(f"{path} is not a folder; give an encoder made by `d2v train`, or a folder of them.")
    runs = [_read_encoder(folder) for folder in _encoder_folders(path, _SEARCH_DEPTH)]
    if not runs and (path / _ENCODER).is_file():
        raise DataFileError(f"{path} holds an encoder, but no record of training; give one made by `d2v train`.")
    if not runs:
        runs = [run for file in _json_files(path, _SEARCH_DEPTH) if (run := _read_results(file))]
    if not runs:
        raise DataFileError(
            f"{path} holds no training run; "
            "give an encoder made by `d2v train`, JSON of `d2v eval`, or a folder of them."
        )
    return runs


def _encoder_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _ENCODER).is_file():
        if (folder / _RESULTS).is_file() or (folder / _RECORD).is_file():
            yield folder
    elif depth:
        for child in _visible_folders(folder):
            yield from _encoder_folders(child, depth - 1)


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    yield from sorted(file for file in folder.glob("*.json") if file.is_file() and not file.name.startswith("."))
    if depth:
        for child in _visible_folders(folder):
            yield from _json_files(child, depth - 1)


def _visible_folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _with_unique_names(runs: Sequence[TrainingRun], paths: Sequence[Path]) -> list[TrainingRun]:
    """Name runs by their plan; add the model to equal names, and the path if that is not enough."""
    named = [replace(run, name=run.plan) for run in runs]
    for detail in ("backbone", "path"):
        count = Counter(run.name for run in named)
        for index, run in enumerate(named):
            if count[run.name] > 1:
                suffix = run.backbone if detail == "backbone" else _relative_path(run.path, paths)
                named[index] = replace(run, name=f"{run.name}, {suffix}")
    return named


def _relative_path(path: Path, roots: Sequence[Path]) -> str:
    """The path within the root, if there is only one; else the whole path."""
    inside = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
    return str(inside[0]) if len(roots) == 1 and inside else str(path)


def _read_encoder(folder: Path) -> TrainingRun:
    run = TrainingRun("", folder.name, folder)
    record, results = folder / _RECORD, folder / _RESULTS
    if record.is_file():
        run = _parse(record, read_json(record, "train again"), run, _add_record)
    if results.is_file():
        run = _parse(results, read_json(results, "train again"), run, _add_results)
    return run


def _read_results(file: Path) -> TrainingRun | None:
    """The run of a file written by `d2v train --results`; None if it is some other JSON."""
    document = read_json(file, "train again")
    if not isinstance(document, dict) or not {"config", "seeds"} <= document.keys():
        return None
    return _parse(file, document, TrainingRun("", file.stem, file), _add_results)


def _parse(file: Path, document: Any, run: TrainingRun, add: Callable[[TrainingRun, Any], TrainingRun]) -> TrainingRun:
    try:
        return add(run, document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise DataFileError(
            f"{file} is not a file written by `d2v train` ({type(error).__name__}: {error}); train again."
        ) from None


def _add_record(run: TrainingRun, document: Any) -> TrainingRun:
    """The run with the record of its best seed (run.json)."""
    readings = tuple(ReadingLabel(str(row["reading"]), int(row["layer"])) for row in document.get("readings", []))
    parameters = document.get("parameters")
    return replace(
        run,
        plan=str(document.get("name") or run.plan),
        readings=readings,
        layers=_layer_scores(document["layers"], len(readings)) if document.get("layers") else None,
        errors=_score_errors(document["errors"]) if document.get("errors") else None,
        examples=tuple(map(_example_pair, document.get("examples", []))),
        trained_parameters=int(parameters["trained"]) if parameters else None,
        trained_share=float(parameters["percent"]) if parameters else None,
        has_record=True,
    )


def _layer_scores(document: Any, count: int) -> LayerScores:
    def by_metric(curves: Any) -> dict[str, tuple[float, ...]]:
        return {metric: _floats(curves[metric], count) for metric in ("pearson", "spearman") if metric in curves}

    return LayerScores(
        str(document.get("data", "dev")),
        by_metric(document.get("raw", {})),
        by_metric(document.get("codes", {})),
        _floats(document.get("weights", []), count),
        _floats(document.get("without", []), count),
        float(document["all"]) if "all" in document else None,
    )


def _score_errors(document: Any) -> ScoreErrors:
    values = tuple(value for value in _floats(document["all"]) if math.isfinite(value))
    return ScoreErrors(str(document.get("data", "")), values, tuple(map(_example_pair, document.get("worst", []))))


def _example_pair(document: Any) -> ExamplePair:
    paper = document.get("paper")
    return ExamplePair(
        str(document["left"]),
        str(document["right"]),
        float(document["truth"]),
        float(document["score"]),
        None if paper is None else float(paper),
    )


def _add_results(run: TrainingRun, document: Any) -> TrainingRun:
    """The run with the results of all seeds (results.json)."""
    config = document["config"]
    recipe = str(config.get("recipe", "freeze"))
    settings = config.get(recipe, {})
    seeds = tuple(_seed_record(seed, settings) for seed in document["seeds"])
    count = max((len(seed.reconstruction_error) for seed in seeds), default=0)
    planned = run.readings if len(run.readings) == count else _planned_readings(settings.get("latents", []), count)
    return replace(
        run,
        plan=str(document.get("plan") or config.get("name") or run.plan),
        backbone=str(document.get("backbone", {}).get("name", "")),
        command=str(document.get("command", "")),
        recipe=recipe,
        headline=str(document.get("headline", "")),
        metric=str(settings.get("choose_by", run.metric)),
        head=str(settings.get("head", "")),
        best_seed=document.get("best_seed"),
        notes=tuple(map(str, document.get("notes", []))),
        seeds=seeds,
        autoencoder_readings=planned,
    )


def _planned_readings(sources: Any, count: int) -> tuple[ReadingLabel, ...]:
    """The readings of a plan; by index if the plan names layers that only the model defines."""
    layers = [source.get("layers", "all") for source in sources]
    readings = [
        ReadingLabel(
            f"layer {layer}, {source.get('pooling', 'lasttoken')} of {source.get('template', 'plain')!r}", layer
        )
        for source, chosen in zip(sources, layers, strict=True)
        for layer in (
            range(1, count // len(layers) + 1) if chosen == "all" else chosen if isinstance(chosen, list) else ()
        )
    ]
    if len(readings) == count:
        return tuple(readings)
    return tuple(ReadingLabel(f"reading {number}", number) for number in range(1, count + 1))


def _seed_record(document: Any, settings: Any) -> SeedRecord:
    notes = document.get("notes", {})
    pretraining = notes.get("pretraining", {})
    names = ("pretraining", "training", "training after selection")
    autoencoders = pretraining if pretraining.get("stage") == "autoencoders" else {}
    return SeedRecord(
        int(document["seed"]),
        _scores(document.get("dev", {})),
        _scores(document.get("test", {})),
        {str(name): float(value) for name, value in document.get("checks", {}).items()},
        tuple(_training_curve(name, notes[name], settings) for name in names if notes.get(name, {}).get("losses")),
        _floats(autoencoders.get("error", [])),
        _floats(autoencoders.get("unexplained", []), len(autoencoders.get("error", []))),
    )


def _scores(document: Any) -> Scores:
    return {
        str(file): {str(metric): float(value) for metric, value in metrics.items()}
        for file, metrics in document.items()
    }


def _training_curve(name: str, document: Any, settings: Any) -> TrainingCurve:
    schedule = settings.get("pretraining" if name == "pretraining" else "training", {})
    stage = str(document.get("stage", "pairs"))
    correlation = {
        "name": f"{settings.get('choose_by', 'pearson').capitalize()} on dev x 100",
        "lower_is_better": False,
    }
    metric = document.get("metric") or _METRICS_OF_OLDER_RESULTS.get(stage, correlation)
    return TrainingCurve(
        name,
        stage,
        _floats(document["losses"]),
        _floats(document.get("scores", [])),
        float(document.get("start", "nan")),
        str(metric["name"]),
        bool(metric["lower_is_better"]),
        int(document.get("best", -1)),
        int(schedule.get("evaluate_every", 0)),
    )


def _floats(values: Any, count: int | None = None) -> tuple[float, ...]:
    floats = tuple(float(value) for value in values)
    if count is not None and floats and len(floats) != count:
        raise ValueError(f"{len(floats)} values for {count} readings")
    return floats
