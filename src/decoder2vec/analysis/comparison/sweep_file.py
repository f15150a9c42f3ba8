"""A sweep over layers, poolings and prompts, read from the sweep.json that `d2v sweep` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from decoder2vec.analysis.comparison.evaluation_file import number
from decoder2vec.analysis.sweep_rows import SweepRow


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
