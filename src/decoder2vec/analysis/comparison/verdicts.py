"""What the comparison comes to: in sentences, and as a table of every two encoders."""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.analysis.comparison.cells import Cell, Table, amount, points, signed
from decoder2vec.analysis.comparison.differences import OVERALL, Differences, said
from decoder2vec.analysis.comparison.evaluation_file import COSTS
from decoder2vec.analysis.comparison.quality_figures import known_costs
from decoder2vec.analysis.comparison.standings import Standing, family_name, pareto_front
from decoder2vec.maths.paired_bootstrap import Difference

MOST = 15
"""More encoders than these make no table that can be read."""
_BEST = {"parameters": "fewest parameters", "tokens_per_second": "most tokens/s", "peak_megabytes": "least memory"}
_UNITS = {"parameters": "parameters", "tokens_per_second": "tokens/s", "peak_megabytes": "MB"}


def sentences(rows: Sequence[Standing], differences: Differences) -> list[str]:
    """The first encoder against each of the others."""
    return [
        said(differences.between(0, other), rows[0].name, rows[other].name) + _over(rows, differences, other)
        for other in range(1, min(len(rows), MOST))
    ]


def _over(rows: Sequence[Standing], differences: Differences, other: int) -> str:
    tasks, every = differences.tasks(0, other), rows[0].overall.of
    return f" (Over {len(tasks)} of {every} tasks.)" if 0 < len(tasks) < every else ""


def headlines(rows: Sequence[Standing]) -> list[tuple[str, str, str]]:
    """What is best, who it is, and how good it is: by quality and by each cost."""
    shown = [row for row in rows if row.overall.complete] or list(rows)
    tasks = "all tasks" if shown[0].overall.complete else f"{shown[0].overall.have} of {shown[0].overall.of} tasks"
    found = [
        ("best mean" if len(rows) > 1 else "mean", shown[0].name, f"{points(shown[0].overall.value)} over {tasks}")
    ]
    for cost in known_costs(rows) if len(rows) > 1 else ():
        priced = [row for row in shown if cost in row.evaluation.cost]
        if priced:
            sign = -1.0 if COSTS[cost] else 1.0
            best = min(priced, key=lambda row: (sign * row.evaluation.cost[cost], -row.overall.value))
            value = f"{amount(best.evaluation.cost[cost])} {_UNITS[cost]}"
            found.append((_BEST[cost], best.name, f"{value}, mean {points(best.overall.value)}"))
    return found


def fronts(rows: Sequence[Standing]) -> list[tuple[str, list[str]]]:
    """For each cost, the encoders that none beats in quality without costing more, from cheap to dear."""
    found = []
    for cost in known_costs(rows):
        front = pareto_front(rows, cost, COSTS[cost])
        said_of = [
            f"{rows[number].name} ({amount(rows[number].evaluation.cost[cost])} {_UNITS[cost]}, "
            f"{points(rows[number].overall.value)})"
            for number in front
        ]
        if said_of:
            found.append((_UNITS[cost] if cost != "peak_megabytes" else "memory", said_of))
    return found


def matrices(rows: Sequence[Standing], differences: Differences) -> list[Table]:
    """Every two encoders, over all tasks and by family: how much the one of the line is above that of the column."""
    if len(rows) < 2:
        return []
    found = []
    shown = rows[:MOST]
    for scope in (OVERALL, *rows[0].families):
        lines = []
        for one, row in enumerate(shown):
            between = [None if one == other else differences.between(one, other, scope) for other in range(len(shown))]
            cells = [Cell("·") if one == other else _pair(found) for other, found in enumerate(between)]
            lines.append([Cell(f"{one + 1}  {row.name}"), *cells])
        if all(cell.mark == "" for line in lines for cell in line):
            continue
        name = "All tasks" if scope == OVERALL else family_name(scope)
        caption = f"{name}: points by which the encoder of a line is above that of a column"
        found.append(Table(caption, ["line − column", *(str(number + 1) for number in range(len(shown)))], lines))
    return found


def _pair(found: Difference | None) -> Cell:
    if found is None:
        return Cell("–")
    mark = "even" if not found.shown else "up" if found.value > 0 else "down"
    return Cell(signed(found.value), found.value, f"{found.low:.1f} to {found.high:.1f}", mark)
