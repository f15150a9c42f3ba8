"""The tables and sentences of a comparison: leaderboard, task scores, pairwise differences and Pareto fronts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from decoder2vec.maths.bootstrap import Difference
from decoder2vec.report.differences import OVERALL, Differences, describe_difference
from decoder2vec.report.figures import format_count, format_points, format_signed
from decoder2vec.report.html import Cell, Table
from decoder2vec.report.ranking import Mean, RankedEncoder, family_name, known_costs, pareto_front
from decoder2vec.report.result_files import COSTS

FLAG = "†"
"""Marks scores with a warning."""
MAX_COMPARED = 15
"""A table of differences between more encoders cannot be read."""
_COST_HEADINGS = {"parameters": "parameters", "tokens_per_second": "tokens/s", "peak_megabytes": "peak MB"}
_COST_UNITS = {"parameters": "parameters", "tokens_per_second": "tokens/s", "peak_megabytes": "MB"}
_COST_RECORDS = {
    "parameters": "fewest parameters",
    "tokens_per_second": "most tokens/s",
    "peak_megabytes": "least memory",
}


def leaderboard(rows: Sequence[RankedEncoder], differences: Differences) -> Table:
    """One row for each encoder: its means by family, and its costs."""
    scopes = [OVERALL, *rows[0].families]
    costs = known_costs(rows)
    columns = {scope: _mean_column(rows, scope, differences) for scope in scopes}
    fronts = {cost: pareto_front(rows, cost, COSTS[cost]) if len(rows) > 1 else [] for cost in costs}
    lines = []
    for index, row in enumerate(rows):
        details = [row.evaluation.kind, f"dim {row.evaluation.dim:,}" if row.evaluation.dim else ""]
        flag = f" {FLAG}" if encoder_flags(rows, row) else ""
        lines.append(
            [
                Cell(str(index + 1), index + 1),
                Cell(row.name + flag, small=", ".join(filter(None, details))),
                *(columns[scope][index] for scope in scopes),
                *(_cost_cell(row, cost, index in fronts[cost]) for cost in costs),
            ]
        )
    headings = ["#", "encoder", "mean", *map(family_name, rows[0].families), *(_COST_HEADINGS[cost] for cost in costs)]
    return Table("Leaderboard", "Mean scores in points", headings, lines, name_column=1, sortable=True)


def _mean_column(rows: Sequence[RankedEncoder], scope: str, differences: Differences) -> list[Cell]:
    """The means of all encoders; the best is marked, and those that do not differ significantly from it."""
    means = [_mean(row, scope) for row in rows]
    ranked = [index for index, mean in enumerate(means) if mean.complete]
    best = max(ranked, key=lambda index: means[index].value) if len(ranked) > 1 else None
    cells = []
    for index, mean in enumerate(means):
        if not mean.n_scored:
            cells.append(Cell("–"))
        elif not mean.complete:
            missing = f"{mean.n_scored} of {mean.n_tasks} tasks"
            cells.append(Cell(format_points(mean.value), small=missing, mark="partial"))
        elif best is not None and mean.value == means[best].value:
            cells.append(Cell(format_points(mean.value), mean.value, mark="best"))
        else:
            result = None if best is None else differences.between(best, index, scope)
            tied = result is not None and not result.significant
            cells.append(Cell(format_points(mean.value), mean.value, mark="tied" if tied else ""))
    return cells


def _mean(row: RankedEncoder, scope: str) -> Mean:
    return row.overall if scope == OVERALL else row.families[scope]


def _cost_cell(row: RankedEncoder, cost: str, on_front: bool) -> Cell:
    if cost not in row.evaluation.cost:
        return Cell("–")
    value = row.evaluation.cost[cost]
    return Cell(format_count(value), value, small="front" if on_front else "")


def task_tables(rows: Sequence[RankedEncoder], tasks: dict[str, list[str]]) -> list[Table]:
    """For each family a table of its tasks, with intervals.

    Args:
        rows: The leaderboard.
        tasks: The names of the tasks of each family.
    """
    tables = []
    for family, names in tasks.items():
        columns = sorted(names)
        lines = [[Cell(row.name), *(_score_cell(rows, row, name) for name in columns)] for row in rows]
        tables.append(
            Table(family_name(family), "Score and 95 % interval", ["encoder", *columns], lines, sortable=True)
        )
    return tables


def _score_cell(rows: Sequence[RankedEncoder], row: RankedEncoder, name: str) -> Cell:
    task = row.evaluation.tasks.get(name)
    if task is None:
        return Cell("–", small="not run")
    if not math.isfinite(task.score):
        return Cell(format_points(task.score))
    scores = [other.evaluation.tasks[name].score for other in rows if name in other.evaluation.tasks]
    is_best = len(scores) > 1 and task.score == max(score for score in scores if math.isfinite(score))
    known = math.isfinite(task.low) and math.isfinite(task.high)
    interval = f"{task.low:.1f} to {task.high:.1f}" if known else ""
    flag = f" {FLAG}" if any(name == flagged for flagged, _ in encoder_flags(rows, row)) else ""
    return Cell(format_points(task.score) + flag, task.score, small=interval, mark="best" if is_best else "")


def encoder_flags(rows: Sequence[RankedEncoder], row: RankedEncoder) -> list[tuple[str, str]]:
    """Task and text of the warnings about one encoder's scores that do not apply to all encoders."""
    shared = set(_shared_flags(rows))
    flags = [(task.name, flag) for task in row.evaluation.tasks.values() for flag in task.flags]
    return [flag for flag in flags if flag not in shared]


def _shared_flags(rows: Sequence[RankedEncoder]) -> list[tuple[str, str]]:
    """Task and text of the warnings about every encoder that ran the task: they are about its data."""
    flagged: Counter[tuple[str, str]] = Counter()
    n_encoders: Counter[str] = Counter()
    for row in rows:
        for task in row.evaluation.tasks.values():
            n_encoders[task.name] += 1
            flagged.update((task.name, flag) for flag in dict.fromkeys(task.flags))
    return [(name, flag) for (name, flag), count in flagged.items() if count == n_encoders[name] > 1]


def score_warnings(rows: Sequence[RankedEncoder]) -> list[str]:
    """Warnings about the scores of single encoders."""
    return [f"{row.name}, {task}: {flag}" for row in rows for task, flag in encoder_flags(rows, row)]


def data_warnings(rows: Sequence[RankedEncoder]) -> list[str]:
    """Warnings about the data of tasks."""
    return [f"{task}: {flag}" for task, flag in _shared_flags(rows)]


def best_against_others(rows: Sequence[RankedEncoder], differences: Differences) -> list[str]:
    """A sentence on the difference between the first encoder and each of the others."""
    sentences = []
    for index in range(1, min(len(rows), MAX_COMPARED)):
        sentence = describe_difference(differences.between(0, index), rows[0].name, rows[index].name)
        n_common, n_tasks = len(differences.tasks(0, index)), rows[0].overall.n_tasks
        sentences.append(sentence + (f" (Over {n_common} of {n_tasks} tasks.)" if 0 < n_common < n_tasks else ""))
    return sentences


def headlines(rows: Sequence[RankedEncoder]) -> list[tuple[str, str, str]]:
    """Label, encoder and value of the best mean and of the lowest cost of each kind."""
    candidates = [row for row in rows if row.overall.complete] or list(rows)
    best = candidates[0]
    tasks = "all tasks" if best.overall.complete else f"{best.overall.n_scored} of {best.overall.n_tasks} tasks"
    label = "best mean" if len(rows) > 1 else "mean"
    facts = [(label, best.name, f"{format_points(best.overall.value)} over {tasks}")]
    for cost in known_costs(rows) if len(rows) > 1 else ():
        if priced := [row for row in candidates if cost in row.evaluation.cost]:
            sign = -1.0 if COSTS[cost] else 1.0
            cheapest = min(priced, key=lambda row: (sign * row.evaluation.cost[cost], -row.overall.value))
            value = f"{format_count(cheapest.evaluation.cost[cost])} {_COST_UNITS[cost]}"
            facts.append((_COST_RECORDS[cost], cheapest.name, f"{value}, mean {format_points(cheapest.overall.value)}"))
    return facts


def front_sentences(rows: Sequence[RankedEncoder]) -> list[str]:
    """For each kind of cost the encoders on the Pareto front, cheapest first."""
    sentences = []
    for cost in known_costs(rows):
        names = [
            f"{rows[index].name} ({format_count(rows[index].evaluation.cost[cost])} {_COST_UNITS[cost]}, "
            f"{format_points(rows[index].overall.value)})"
            for index in pareto_front(rows, cost, COSTS[cost])
        ]
        if names:
            what = _COST_UNITS[cost] if cost != "peak_megabytes" else "memory"
            sentences.append(f"By {what}: {', '.join(names)}.")
    return sentences


def difference_tables(rows: Sequence[RankedEncoder], differences: Differences) -> list[Table]:
    """Points by which the encoder of a row is above that of a column, over all tasks and by family."""
    if len(rows) < 2:
        return []
    tables = []
    compared = rows[:MAX_COMPARED]
    for scope in (OVERALL, *rows[0].families):
        lines = []
        for a, row in enumerate(compared):
            cells = [
                Cell("·") if a == b else _difference_cell(differences.between(a, b, scope))
                for b in range(len(compared))
            ]
            lines.append([Cell(f"{a + 1}  {row.name}"), *cells])
        if all(cell.mark == "" for line in lines for cell in line):
            continue
        title = "All tasks" if scope == OVERALL else family_name(scope)
        headings = ["row − column", *(str(index + 1) for index in range(len(compared)))]
        tables.append(Table(title, "Points by which the encoder of a row is above that of a column", headings, lines))
    return tables


def _difference_cell(result: Difference | None) -> Cell:
    if result is None:
        return Cell("–")
    mark = "even" if not result.significant else "higher" if result.value > 0 else "lower"
    return Cell(format_signed(result.value), result.value, f"{result.low:.1f} to {result.high:.1f}", mark)
