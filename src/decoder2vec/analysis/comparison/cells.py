"""Tables before they are HTML or markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What stands in a cell: words, the number it is sorted by, small print, and how it is marked."""

    text: str
    value: float | None = None
    """None: always below those that have one."""
    small: str = ""
    mark: str = ""
    """best, near (no difference from the best is shown), partial, up, down, even, or nothing."""


@dataclass(frozen=True)
class Table:
    """A table; the column of number `names` names the rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 0
    sortable: bool = False


def points(value: float) -> str:
    """A score as people read it."""
    return f"{value:.1f}" if math.isfinite(value) else "not a number"


def amount(value: float) -> str:
    """A count as people read it: 134 M, 1,234."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 100 * size else f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def signed(value: float) -> str:
    """A difference as people read it: nothing has no sign."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"
