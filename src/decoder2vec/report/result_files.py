"""Find and read the JSON results that a report shows: evaluations, sweeps, intrinsic dimensions and trajectories.

Files are recognised by their content, not by their names. Files of older versions stay readable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.selection import Selection
from decoder2vec.analysis.sweep import SweepRow
from decoder2vec.errors import DataFileError
from decoder2vec.storage import read_json, real_path

Floats = NDArray[np.float64]

COSTS = {"parameters": False, "tokens_per_second": True, "peak_megabytes": False}
"""The kinds of cost of an encoder, and whether a larger value is better."""
_ITEMS = ".items.json"
"""Ending of the file with per-item results next to an evaluation."""
TRAJECTORY_FILE = "trajectory.json"
"""The result of a trajectory; the evaluations in its folder belong to it."""
_SEARCH_DEPTH = 2


@dataclass(frozen=True, eq=False)
class ItemResults:
    """The per-item results of a score: values to average, or similarities with their human scores."""

    values: Floats
    """[items]"""
    gold: Floats | None = None
    """[items]"""

    @property
    def usable(self) -> bool:
        """Whether there is at least one item, and all values are finite."""
        gold = self.values if self.gold is None else self.gold
        same_shape = gold.shape == self.values.shape and self.values.ndim == 1
        return bool(same_shape and self.values.size and np.isfinite(self.values).all() and np.isfinite(gold).all())


@dataclass(frozen=True)
class TaskScore:
    """The score of an encoder on one task, in points; an unknown interval is NaN."""

    name: str
    family: str
    metric: str
    score: float
    low: float = math.nan
    high: float = math.nan
    flags: tuple[str, ...] = ()
    """Warnings about this score."""
    items: ItemResults | None = None
    constant: float = math.nan
    """The score of a constant prediction; NaN if it is not known."""


@dataclass(frozen=True)
class Evaluation:
    """An encoder with its scores and costs."""

    name: str
    """Unique in a report."""
    path: Path
    fingerprint: str = ""
    kind: str = ""
    dim: int | None = None
    tasks: dict[str, TaskScore] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    """By the keys of COSTS; unknown ones are left out."""
    command: str = ""
    versions: str = ""


@dataclass(frozen=True)
class SavedSweep:
    """A sweep, as read from its file."""

    name: str
    """Unique in a report."""
    model: str
    data: str
    """The pairs it was scored on."""
    rows: tuple[SweepRow, ...]
    """Best first."""
    path: Path
    selection: str = ""
    """How much the choice of the best reading can be trusted, in a sentence."""

    def distinct(self, column: str) -> list[Any]:
        """The distinct values of a column, in the order of their first row."""
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))


@dataclass(frozen=True)
class LayerDimension:
    """Both estimates of the intrinsic dimension of one layer; unknown values are NaN."""

    layer: int
    twonn: float
    low: float
    high: float
    mle: float


@dataclass(frozen=True)
class DimensionCurve:
    """The intrinsic dimension of every layer of one encoder."""

    name: str
    """Unique in a report."""
    layers: tuple[LayerDimension, ...]
    path: Path
    texts: int | None = None
    area: float = math.nan

    @property
    def peak(self) -> LayerDimension:
        """The layer with the highest TwoNN estimate (the first layer, if none is known)."""
        known = [layer for layer in self.layers if math.isfinite(layer.twonn)]
        return max(known or self.layers[:1], key=lambda layer: layer.twonn)


@dataclass
class ReportInputs:
    """Everything found to report on, and which files were skipped."""

    evaluations: list[Evaluation] = field(default_factory=list)
    sweeps: list[SavedSweep] = field(default_factory=list)
    dimensions: list[DimensionCurve] = field(default_factory=list)
    training_results: list[Path] = field(default_factory=list)
    """Result files of training runs; `runs.py` reads them."""
    trajectories: list[Path] = field(default_factory=list)
    """Results of trajectories; `trajectory.py` reads them."""
    skipped: list[str] = field(default_factory=list)
    """One sentence for each path that adds nothing."""

    @property
    def has_comparison(self) -> bool:
        """Whether there is more to report on than training runs."""
        return bool(self.evaluations or self.sweeps or self.dimensions or self.trajectories)


def find_results(paths: Sequence[Path]) -> ReportInputs:
    """Read all evaluations, sweeps and intrinsic dimensions in files, and in folders up to two levels down.

    Other files in a folder are ignored, and damaged ones are listed in `skipped`.

    Raises:
        DataFileError: A path does not exist, or a file named in `paths` is damaged or of another kind.
    """
    inputs = ReportInputs()
    seen: set[Path] = set()
    for path in paths:
        count = 0
        for file in [path] if path.is_file() else _json_files(path, _SEARCH_DEPTH):
            if real_path(file) not in seen:
                seen.add(real_path(file))
                count += _add_file(inputs, file, named=path.is_file())
        if not count:
            inputs.skipped.append(f"{path}: no results found, or all of them were already read.")
    inputs.evaluations = _with_unique_names(_join_evaluations(inputs.evaluations))
    inputs.sweeps, inputs.dimensions = _with_unique_names(inputs.sweeps), _with_unique_names(inputs.dimensions)
    return inputs


def before_and_after(inputs: ReportInputs, paths: Sequence[Path]) -> list[Evaluation]:
    """The evaluations in the order of `paths` if there are two paths or more with exactly one each, else none."""
    chosen = []
    for path in paths:
        parent = real_path(path)
        files = [(one, real_path(one.path)) for one in inputs.evaluations]
        inside = [one for one, file in files if file == parent or parent in file.parents]
        if len(inside) != 1:
            return []
        chosen += inside
    return chosen if len(chosen) > 1 and len(chosen) == len({one.name for one in chosen}) else []


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        raise DataFileError(
            f"{folder} is neither a file nor a folder; "
            "give an encoder made by `d2v train`, or a result written by `d2v eval --json`."
        )
    if (folder / TRAJECTORY_FILE).is_file():
        yield folder / TRAJECTORY_FILE
        return
    visible = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    yield from (child for child in visible if child.name.endswith(".json") and child.is_file())
    for child in visible if depth else ():
        if child.is_dir():
            yield from _json_files(child, depth - 1)


def _add_file(inputs: ReportInputs, file: Path, named: bool) -> bool:
    """Add the content of a file and return whether it is a known kind; `named` files must be."""
    if file.name.endswith(_ITEMS) and not named:
        return False
    try:
        known = _add_document(inputs, read_json(file, "write it again"), file)
    except DataFileError as error:
        if named:
            raise
        inputs.skipped.append(str(error))
        return False
    if named and not known:
        raise DataFileError(
            f"{file} is not a result that can be reported; "
            "give a file written by `d2v eval --json`, `d2v sweep`, `d2v analyze id` or `d2v train`."
        )
    return known


def _add_document(inputs: ReportInputs, document: Any, file: Path) -> bool:
    if _is_evaluation(document):
        items_file = file.with_name(f"{file.stem}{_ITEMS}")
        items = read_json(items_file, "write it again") if items_file.is_file() else None
        inputs.evaluations.append(_parse(file, lambda: _evaluation(document, items, file)))
    elif _is_sweep(document):
        inputs.sweeps.append(_parse(file, lambda: _sweep(document, file)))
    elif _is_dimension(document):
        inputs.dimensions += _parse(file, lambda: _dimension_curves(document, file))
    elif isinstance(document, dict) and {"config", "seeds"} <= document.keys():
        inputs.training_results.append(file)
    elif isinstance(document, dict) and document.get("kind") == "trajectory":
        inputs.trajectories.append(file)
    else:
        return False
    return True


_Parsed = TypeVar("_Parsed")


def _parse(file: Path, parse: Callable[[], _Parsed]) -> _Parsed:
    try:
        return parse()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataFileError(
            f"{file} has an unexpected structure ({type(error).__name__}: {error}); write it again, or leave it out."
        ) from None


def _join_evaluations(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Join files of the same encoder with different tasks; files with a common task stay separate."""
    joined: list[Evaluation] = []
    for new in evaluations:
        for index, old in enumerate(joined):
            same_encoder = new.fingerprint and (new.fingerprint, new.name) == (old.fingerprint, old.name)
            if same_encoder and not new.tasks.keys() & old.tasks.keys():
                joined[index] = replace(old, tasks={**old.tasks, **new.tasks}, cost=_higher_cost(old, new))
                break
        else:
            joined.append(new)
    return joined


def _higher_cost(*evaluations: Evaluation) -> dict[str, float]:
    """The worse value of each cost: the lower speed, the higher peak."""
    known = {kind: [one.cost[kind] for one in evaluations if kind in one.cost] for kind in COSTS}
    return {kind: min(values) if COSTS[kind] else max(values) for kind, values in known.items() if values}


_Named = TypeVar("_Named", Evaluation, SavedSweep, DimensionCurve)


def _with_unique_names(results: Sequence[_Named]) -> list[_Named]:
    """Add the file name to equal names, and the whole path if that is not enough."""
    named = list(results)
    for describe_path in (lambda path: path.stem, str):
        count = Counter(result.name for result in named)
        named = [
            replace(result, name=f"{result.name} ({describe_path(result.path)})") if count[result.name] > 1 else result
            for result in named
        ]
    return named


def _is_evaluation(document: Any) -> bool:
    """Whether `d2v eval --json` wrote this, on tasks of several kinds or on scored pairs alone."""
    if not isinstance(document, dict) or "encoder" not in document:
        return False
    has_tasks = isinstance(document["encoder"], dict) and isinstance(document.get("tasks"), dict)
    return has_tasks or (isinstance(document.get("results"), list) and "mean_spearman" in document)


def _evaluation(document: Any, items: Any, path: Path) -> Evaluation:
    if "results" in document:
        document = _pairs_as_tasks(document)
    encoder, cost = document["encoder"], document.get("cost") or {}
    items = items if isinstance(items, Mapping) else {}
    costs = {kind: _float_or_nan(cost.get(kind, encoder.get(kind))) for kind in COSTS}
    dim, versions = _float_or_nan(encoder.get("dim")), document.get("versions")
    return Evaluation(
        str(encoder.get("name") or path.stem),
        path,
        str(encoder.get("fingerprint") or ""),
        str(encoder.get("kind") or ""),
        int(dim) if math.isfinite(dim) else None,
        {str(name): _task_score(str(name), task, items.get(name)) for name, task in document["tasks"].items()},
        {kind: value for kind, value in costs.items() if math.isfinite(value) and value > 0},
        str(document.get("command") or ""),
        ", ".join(f"{name} {value}" for name, value in versions.items()) if isinstance(versions, Mapping) else "",
    )


def _pairs_as_tasks(document: Any) -> dict[str, Any]:
    """Convert results on scored pairs alone to the structure of results on tasks."""
    tasks = {
        result["task"]: {
            "kind": "sts",
            "metric": "spearman",
            "score": result["spearman"],
            "interval": result.get("spearman_95"),
        }
        for result in document["results"]
    }
    encoder = {"name": document["encoder"], "fingerprint": document.get("fingerprint")}
    cost = {"tokens_per_second": document.get("tokens_per_second")}
    return {**document, "encoder": encoder, "tasks": tasks, "cost": cost}


def _task_score(name: str, task: Any, items: Any) -> TaskScore:
    low, high = (_float_or_nan(bound) for bound in task.get("interval") or (None, None))
    return TaskScore(
        name,
        str(task["kind"]),
        str(task.get("metric", "")),
        _float_or_nan(task["score"]),
        low,
        high,
        tuple(map(str, task.get("flags") or ())),
        (results := _item_results(items)),
        _constant_score(task, results),
    )


def _constant_score(task: Any, items: ItemResults | None) -> float:
    """The recorded score of a constant prediction; in files of older versions what follows from the metric."""
    if "constant_score" in task:
        return _float_or_nan(task["constant_score"])
    if task["kind"] in ("sts", "clustering"):
        return 0.0
    if task["kind"] == "pair_classification" and items is not None and items.gold is not None and items.usable:
        return 100 * float((items.gold > 0).mean())
    return math.nan


def _item_results(items: Any) -> ItemResults | None:
    if not isinstance(items, Mapping):
        return None
    if "values" in items:
        return ItemResults(_floats(items["values"]))
    if {"predicted", "gold"} <= items.keys():
        return ItemResults(_floats(items["predicted"]), _floats(items["gold"]))
    return None


def _is_sweep(document: Any) -> bool:
    """Whether `d2v sweep` wrote this."""
    return isinstance(document, dict) and {"model", "plan", "winner", "rows"} <= document.keys()


def _sweep(document: Any, path: Path) -> SavedSweep:
    rows = sorted(map(_sweep_row, document["rows"]), key=lambda row: (math.isnan(row.spearman), -row.spearman))
    if not rows:
        raise ValueError("no rows")
    model = str(document["model"])
    data, selection = str(document.get("data", {}).get("name", "")), _selection(document.get("selection"))
    return SavedSweep(model, model, data, tuple(rows), path, selection)


def _selection(document: Any) -> str:
    """The sentence on the choice of the best reading; empty for sweeps of older versions."""
    if not document:
        return ""
    values = {column.name: document[column.name] for column in fields(Selection)}
    low, high = values["spearman_95"]
    selection = Selection(**{**values, "spearman_95": (float(low), float(high)), "tied": tuple(values["tied"])})
    summary = selection.summary()
    return f"{summary[0].upper()}{summary[1:]}. {selection.warning()}".strip()


def _sweep_row(row: Any) -> SweepRow:
    values = {column.name: row[column.name] for column in fields(SweepRow)}
    values["layer"] = int(values["layer"])
    values |= {metric: _float_or_nan(values[metric]) for metric in ("spearman", "pearson")}
    return SweepRow(**values)


def _is_dimension(document: Any) -> bool:
    """Whether `d2v analyze id` wrote this, for one encoder or for several."""
    return isinstance(document, dict) and any(map(_is_dimension_curve, document.get("encoders") or [document]))


def _is_dimension_curve(document: Any) -> bool:
    layers = document.get("layers") if isinstance(document, dict) else None
    return isinstance(layers, list) and bool(layers) and isinstance(layers[0], dict) and "twonn" in layers[0]


def _dimension_curves(document: Any, path: Path) -> list[DimensionCurve]:
    return [_dimension_curve(curve, path) for curve in document.get("encoders") or [document]]


def _dimension_curve(document: Any, path: Path) -> DimensionCurve:
    encoder, texts, area = document.get("encoder"), document.get("texts"), document.get("area")
    name = encoder.get("name") if isinstance(encoder, dict) else encoder
    count = _float_or_nan(texts.get("count") if isinstance(texts, dict) else texts)
    # the last layer is listed twice; the curve ends with the one after the final norm
    rows = {int(row["layer"]): row for row in sorted(document["layers"], key=lambda row: bool(row.get("normed")))}
    return DimensionCurve(
        str(name or path.stem),
        tuple(_layer_dimension(rows[layer]) for layer in sorted(rows)),
        path,
        int(count) if math.isfinite(count) else None,
        _float_or_nan(area.get("unit") if isinstance(area, dict) else area),  # over a depth of 1, if there are several
    )


def _layer_dimension(row: Any) -> LayerDimension:
    low, high = row.get("twonn_95") or (None, None)
    return LayerDimension(int(row["layer"]), *map(_float_or_nan, (row["twonn"], low, high, row.get("mle"))))


def _floats(values: Any) -> Floats:
    return np.array([_float_or_nan(value) for value in values], np.float64)


def _float_or_nan(value: Any) -> float:
    """A JSON number as float; anything else is NaN."""
    return float(value) if isinstance(value, int | float) else math.nan
