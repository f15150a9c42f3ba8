"""The leaderboard and the scores of every task, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from decoder2vec.maths.bootstrap import Difference
from decoder2vec.report.differences import OVERALL, Differences, said
from decoder2vec.report.html import Cell, Table, amount, points, signed
from decoder2vec.report.quality_figures import known_costs
from decoder2vec.report.result_files import COSTS
from decoder2vec.report.standings import Mean, Standing, family_name, pareto_front

COST_HEADS = {"parameters": "parameters", "tokens_per_second": "tokens/s", "peak_megabytes": "peak MB"}
FLAG = "†"


def leaderboard(rows: Sequence[Standing], differences: Differences) -> Table:
    """One line for each encoder: its means by family, and what it costs."""
    scopes = [OVERALL, *rows[0].families]
    costs = known_costs(rows)
    columns = {scope: _means(rows, scope, differences) for scope in scopes}
    fronts = {cost: pareto_front(rows, cost, COSTS[cost]) if len(rows) > 1 else [] for cost in costs}
    lines = []
    for number, row in enumerate(rows):
        about = [row.evaluation.kind, f"dim {row.evaluation.dim:,}" if row.evaluation.dim else ""]
        lines.append(
            [
                Cell(str(number + 1), number + 1),
                Cell(
                    row.name + (f" {FLAG}" if own_flags(rows, row) else ""),
                    small=", ".join(part for part in about if part),
                ),
                *(columns[scope][number] for scope in scopes),
                *(_cost(row, cost, number in fronts[cost]) for cost in costs),
            ]
        )
    heads = ["#", "encoder", "mean", *map(family_name, rows[0].families), *(COST_HEADS[cost] for cost in costs)]
    return Table("Leaderboard: means in points", heads, lines, names=1, sortable=True)


def _mean_of(row: Standing, scope: str) -> Mean:
    return row.overall if scope == OVERALL else row.families[scope]


def _means(rows: Sequence[Standing], scope: str, differences: Differences) -> list[Cell]:
    """A column; marked are the best, and those that this data does not tell from it."""
    means = [_mean_of(row, scope) for row in rows]
    ranked = [number for number, mean in enumerate(means) if mean.complete]
    best = max(ranked, key=lambda number: means[number].value) if len(ranked) > 1 else None
    cells = []
    for number, mean in enumerate(means):
        if not mean.have:
            cells.append(Cell("–"))
        elif not mean.complete:
            cells.append(Cell(points(mean.value), small=f"{mean.have} of {mean.of} tasks", mark="partial"))
        elif best is not None and mean.value == means[best].value:
            cells.append(Cell(points(mean.value), mean.value, mark="best"))
        else:
            found = None if best is None else differences.between(best, number, scope)
            near = found is not None and not found.significant
            cells.append(Cell(points(mean.value), mean.value, mark="near" if near else ""))
    return cells


def _cost(row: Standing, cost: str, leads: bool) -> Cell:
    if cost not in row.evaluation.cost:
        return Cell("–")
    value = row.evaluation.cost[cost]
    return Cell(amount(value), value, small="front" if leads else "")


def task_tables(rows: Sequence[Standing], tasks: dict[str, list[str]]) -> list[Table]:
    """For each family a table of its tasks, with intervals."""
    found = []
    for family, names in tasks.items():
        shown = sorted(names)
        lines = [[Cell(row.name), *(_score(rows, row, name) for name in shown)] for row in rows]
        found.append(
            Table(f"{family_name(family)}: score and 95 % interval", ["encoder", *shown], lines, sortable=True)
        )
    return found


def _score(rows: Sequence[Standing], row: Standing, name: str) -> Cell:
    task = row.evaluation.tasks.get(name)
    if task is None:
        return Cell("–", small="not run")
    if not math.isfinite(task.score):
        return Cell(points(task.score))
    others = [other.evaluation.tasks[name].score for other in rows if name in other.evaluation.tasks]
    best = len(others) > 1 and task.score == max(score for score in others if math.isfinite(score))
    known = math.isfinite(task.low) and math.isfinite(task.high)
    interval = f"{task.low:.1f} to {task.high:.1f}" if known else ""
    words = points(task.score) + (f" {FLAG}" if any(name == one for one, _ in own_flags(rows, row)) else "")
    return Cell(words, task.score, small=interval, mark="best" if best else "")


def own_flags(rows: Sequence[Standing], row: Standing) -> list[tuple[str, str]]:
    """Task and words of what was said about scores of one encoder, and not of every encoder that has the task."""
    shared = set(shared_flags(rows))
    found = [(task.name, flag) for task in row.evaluation.tasks.values() for flag in task.flags]
    return [one for one in found if one not in shared]


def shared_flags(rows: Sequence[Standing]) -> list[tuple[str, str]]:
    """Task and words of what was said of every encoder that has the task: it is about the data."""
    found: dict[tuple[str, str], int] = {}
    runs: dict[str, int] = {}
    for row in rows:
        for task in row.evaluation.tasks.values():
            runs[task.name] = runs.get(task.name, 0) + 1
            for flag in dict.fromkeys(task.flags):
                found[task.name, flag] = found.get((task.name, flag), 0) + 1
    return [(name, flag) for (name, flag), count in found.items() if count == runs[name] > 1]


def flags(rows: Sequence[Standing]) -> list[str]:
    """What to keep in mind of single scores."""
    return [f"{row.name}, {task}: {flag}" for row in rows for task, flag in own_flags(rows, row)]


def about_data(rows: Sequence[Standing]) -> list[str]:
    """What to keep in mind of whole tasks."""
    return [f"{task}: {flag}" for task, flag in shared_flags(rows)]


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
    mark = "even" if not found.significant else "up" if found.value > 0 else "down"
    return Cell(signed(found.value), found.value, f"{found.low:.1f} to {found.high:.1f}", mark)
