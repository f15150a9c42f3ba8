"""What an encoder scored and what it cost, read from the JSON that `d2v eval` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
