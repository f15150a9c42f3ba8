"""The rows of a sweep: one way to read the model each. They are read again from disk, where no model is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SweepRow:
    """One way to read the model, and how well it did on the pairs."""

    template: str
    attention: str
    layer: int
    normed: bool
    pooling: str
    head: str
    spearman: float
    pearson: float


def curve(rows: Sequence[SweepRow], **fixed: Any) -> dict[int, float]:
    """Spearman by layer of the rows that agree with `fixed`; raw layers only."""
    chosen = [row for row in rows if not row.normed and all(getattr(row, k) == v for k, v in fixed.items())]
    return {row.layer: row.spearman for row in sorted(chosen, key=lambda row: row.layer)}


def best_by(rows: Sequence[SweepRow], *names: str) -> list[SweepRow]:
    """The best row for each different combination of the named fields, best first."""
    best: dict[tuple[Any, ...], SweepRow] = {}
    for row in sorted(rows, key=lambda row: -row.spearman):
        best.setdefault(tuple(getattr(row, name) for name in names), row)
    return list(best.values())
