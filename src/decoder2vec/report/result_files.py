"""What an encoder scored and what it cost, read from the JSON that `d2v eval` writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.sweep import SweepRow
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.storage import read_json

Floats = NDArray[np.float64]

COSTS = {"parameters": False, "tokens_per_second": True, "peak_megabytes": False}
"""What an encoder costs, and whether more of it is better."""


@dataclass(frozen=True, eq=False)
class Items:
    """The single results behind a score: values to average, or similarities and what people said."""

    values: Floats
    gold: Floats | None = None

    @property
    def usable(self) -> bool:
        """Is there something to draw from, and all of it numbers?"""
        gold = self.values if self.gold is None else self.gold
        same = gold.shape == self.values.shape and self.values.ndim == 1
        return bool(same and self.values.size and np.isfinite(self.values).all() and np.isfinite(gold).all())


@dataclass(frozen=True)
class Task:
    """One score of an encoder, in points; an interval that is not known is NaN."""

    name: str
    family: str
    metric: str
    score: float
    low: float = math.nan
    high: float = math.nan
    flags: tuple[str, ...] = ()
    items: Items | None = None


@dataclass(frozen=True)
class Evaluation:
    """An encoder and all it scored."""

    name: str
    """Unique in a report."""
    path: Path
    fingerprint: str = ""
    kind: str = ""
    dim: int | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    """By the names of COSTS; what is not known is left out."""
    command: str = ""
    versions: str = ""


def is_evaluation(document: Any) -> bool:
    """Is this what `d2v eval --json` writes, with tasks of several kinds or with pairs alone?"""
    if not isinstance(document, dict) or "encoder" not in document:
        return False
    tasks = isinstance(document["encoder"], dict) and isinstance(document.get("tasks"), dict)
    return tasks or (isinstance(document.get("results"), list) and "mean_spearman" in document)


def read_evaluation(document: Any, items: Any, path: Path) -> Evaluation:
    """The evaluation in a document; `items` is the document beside it, or None."""
    if "results" in document:
        document = _pairs_as_tasks(document)
    encoder, cost = document["encoder"], document.get("cost") or {}
    found = items if isinstance(items, Mapping) else {}
    numbers = {name: number(cost.get(name, encoder.get(name))) for name in COSTS}
    dim = number(encoder.get("dim"))
    return Evaluation(
        str(encoder.get("name") or path.stem),
        path,
        str(encoder.get("fingerprint") or ""),
        str(encoder.get("kind") or ""),
        int(dim) if math.isfinite(dim) else None,
        {str(name): _task(str(name), task, found.get(name)) for name, task in document["tasks"].items()},
        {name: value for name, value in numbers.items() if math.isfinite(value) and value > 0},
        str(document.get("command") or ""),
        _versions(document.get("versions")),
    )


def _pairs_as_tasks(document: Any) -> dict[str, Any]:
    """Results on scored pairs alone, in the shape of the results on tasks."""
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


def _task(name: str, found: Any, items: Any) -> Task:
    interval = found.get("interval") or (None, None)
    low, high = (number(end) for end in interval)
    return Task(
        name,
        str(found["kind"]),
        str(found.get("metric", "")),
        number(found["score"]),
        low,
        high,
        tuple(map(str, found.get("flags") or ())),
        _items(items),
    )


def _items(found: Any) -> Items | None:
    if not isinstance(found, Mapping):
        return None
    if "values" in found:
        return Items(_floats(found["values"]))
    return Items(_floats(found["predicted"]), _floats(found["gold"])) if {"predicted", "gold"} <= found.keys() else None


def _floats(values: Any) -> Floats:
    return np.array([number(value) for value in values], np.float64)


def number(value: Any) -> float:
    """A number as JSON says it; what is none is NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def _versions(found: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items()) if isinstance(found, Mapping) else ""


@dataclass(frozen=True)
class SavedSweep:
    """The rows of a sweep, best first, and what they were scored on."""

    name: str
    """Unique in a report."""
    model: str
    data: str
    rows: tuple[SweepRow, ...]
    path: Path

    def different(self, field: str) -> list[Any]:
        """The different values of a field, in the order of their first row."""
        return list(dict.fromkeys(getattr(row, field) for row in self.rows))


def is_sweep(document: Any) -> bool:
    """Is this what `d2v sweep` writes?"""
    return isinstance(document, dict) and {"model", "plan", "winner", "rows"} <= document.keys()


def read_sweep(document: Any, path: Path) -> SavedSweep:
    """The sweep in a document."""
    rows = sorted(map(_row, document["rows"]), key=lambda row: (math.isnan(row.spearman), -row.spearman))
    if not rows:
        raise ValueError("no rows")
    model = str(document["model"])
    return SavedSweep(model, model, str(document.get("data", {}).get("name", "")), tuple(rows), path)


def _row(found: Any) -> SweepRow:
    values = {one.name: found[one.name] for one in fields(SweepRow)}
    values["layer"] = int(values["layer"])
    values |= {metric: number(values[metric]) for metric in ("spearman", "pearson")}
    return SweepRow(**values)


def ways(rows: Sequence[SweepRow]) -> list[tuple[str, str]]:
    """The different poolings and heads of some rows, the best first; a sum beside a mean says nothing new."""
    found = list(dict.fromkeys((row.pooling, row.head) for row in rows))
    names = {pooling for pooling, _ in found}
    return [(pooling, head) for pooling, head in found if pooling != "sum" or "mean" not in names]


@dataclass(frozen=True)
class LayerDimension:
    """Both estimates at one layer; what is not known is NaN."""

    layer: int
    twonn: float
    low: float
    high: float
    mle: float


@dataclass(frozen=True)
class Dimensions:
    """The curve of one encoder."""

    name: str
    """Unique in a report."""
    layers: tuple[LayerDimension, ...]
    path: Path
    texts: int | None = None
    area: float = math.nan

    @property
    def peak(self) -> LayerDimension:
        """The layer of the highest dimension by TwoNN (of the first layer, where none is known)."""
        known = [layer for layer in self.layers if math.isfinite(layer.twonn)]
        return max(known or self.layers[:1], key=lambda layer: layer.twonn)


def is_dimensions(document: Any) -> bool:
    """Is this what `d2v analyze id` writes: the curve of one encoder, or of several?"""
    return isinstance(document, dict) and any(map(_is_curve, document.get("encoders") or [document]))


def _is_curve(document: Any) -> bool:
    layers = document.get("layers") if isinstance(document, dict) else None
    return isinstance(layers, list) and bool(layers) and isinstance(layers[0], dict) and "twonn" in layers[0]


def read_dimensions(document: Any, path: Path) -> list[Dimensions]:
    """The curves in a document."""
    return [_curve(one, path) for one in document.get("encoders") or [document]]


def _curve(found: Any, path: Path) -> Dimensions:
    encoder, texts = found.get("encoder"), found.get("texts")
    name = encoder.get("name") if isinstance(encoder, dict) else encoder
    count = number(texts.get("count") if isinstance(texts, dict) else texts)
    # the last layer stands there twice, and the curve ends behind the final norm
    layers = {int(one["layer"]): one for one in sorted(found["layers"], key=lambda one: bool(one.get("normed")))}
    return Dimensions(
        str(name or path.stem),
        tuple(_layer(layers[place]) for place in sorted(layers)),
        path,
        int(count) if math.isfinite(count) else None,
        _area(found.get("area")),
    )


def _layer(found: Any) -> LayerDimension:
    low, high = found.get("twonn_95") or (None, None)
    return LayerDimension(int(found["layer"]), *map(number, (found["twonn"], low, high, found.get("mle"))))


def _area(found: Any) -> float:
    """Over a depth of 1, where there are several."""
    return number(found.get("unit")) if isinstance(found, dict) else number(found)


_ITEMS = ".items.json"
_DEPTH = 2
_Named = TypeVar("_Named", Evaluation, SavedSweep, Dimensions)


@dataclass
class Found:
    """What was found, and which files could not be read."""

    evaluations: list[Evaluation] = field(default_factory=list)
    sweeps: list[SavedSweep] = field(default_factory=list)
    dimensions: list[Dimensions] = field(default_factory=list)
    training: list[Path] = field(default_factory=list)
    """Files of results of training; they are read by the report on runs."""
    left_out: list[str] = field(default_factory=list)

    @property
    def compares(self) -> bool:
        """Is there more here than training runs?"""
        return bool(self.evaluations or self.sweeps or self.dimensions)


def gather(places: Sequence[Path]) -> Found:
    """Evaluations, sweeps and intrinsic dimensions in some files, and in folders up to two levels down.

    A file that was named must be one of them. In a folder other files are passed over, and damaged ones are told.
    """
    found = Found()
    seen: set[Path] = set()
    for place in places:
        known = 0
        for file in [place] if place.is_file() else _json_files(place, _DEPTH):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                known += _add(found, file, named=place.is_file())
        if not known:
            found.left_out.append(f"{place} holds nothing to report, or nothing new.")
    found.evaluations = _unique(_joined(found.evaluations))
    found.sweeps, found.dimensions = _unique(found.sweeps), _unique(found.dimensions)
    return found


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} is neither a file nor a folder; "
            "give an encoder made by `d2v train`, or what `d2v eval --json` wrote."
        )
    shown = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    yield from (child for child in shown if child.name.endswith(".json") and child.is_file())
    for child in shown if depth else ():
        if child.is_dir():
            yield from _json_files(child, depth - 1)


def _add(found: Found, file: Path, named: bool) -> bool:
    if file.name.endswith(_ITEMS) and not named:
        return False
    try:
        document = read_json(file, "write it again")
        known = _add_document(found, document, file)
    except DataFileError as error:
        if named:
            raise
        found.left_out.append(str(error))
        return False
    if named and not known:
        raise InputError(
            f"{file} holds nothing to report; give what `d2v eval --json`, `d2v sweep` or `d2v train` wrote."
        )
    return known


def _add_document(found: Found, document: Any, file: Path) -> bool:
    """Put the document where it belongs; False if it is some other JSON."""
    if is_evaluation(document):
        items = file.with_name(f"{file.stem}{_ITEMS}")
        beside = read_json(items, "write it again") if items.is_file() else None
        found.evaluations.append(_parsed(file, lambda: read_evaluation(document, beside, file)))
    elif is_sweep(document):
        found.sweeps.append(_parsed(file, lambda: read_sweep(document, file)))
    elif is_dimensions(document):
        found.dimensions += _parsed(file, lambda: read_dimensions(document, file))
    elif isinstance(document, dict) and {"config", "seeds"} <= document.keys():
        found.training.append(file)
    else:
        return False
    return True


_Read = TypeVar("_Read")


def _parsed(file: Path, read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataFileError(f"{file} is not as it was written ({type(error).__name__}: {error}).") from None


def _joined(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Files of one encoder with different tasks are one evaluation; with the same task twice they stay apart."""
    found: list[Evaluation] = []
    for one in evaluations:
        for place, other in enumerate(found):
            same = one.fingerprint and (one.fingerprint, one.name) == (other.fingerprint, other.name)
            if same and not one.tasks.keys() & other.tasks.keys():
                found[place] = replace(other, tasks={**other.tasks, **one.tasks}, cost=_joined_cost(other, one))
                break
        else:
            found.append(one)
    return found


def _joined_cost(one: Evaluation, other: Evaluation) -> dict[str, float]:
    """The dearer of the two: the slower speed, the higher peak."""
    both = {name: [each.cost[name] for each in (one, other) if name in each.cost] for name in COSTS}
    return {name: min(values) if COSTS[name] else max(values) for name, values in both.items() if values}


def _unique(found: Sequence[_Named]) -> list[_Named]:
    """Where two have the same name, their files tell them apart, or else where these lie."""
    named = list(found)
    for tell in (lambda path: path.stem, str):
        count = Counter(one.name for one in named)
        named = [replace(one, name=f"{one.name} ({tell(one.path)})") if count[one.name] > 1 else one for one in named]
    return named
