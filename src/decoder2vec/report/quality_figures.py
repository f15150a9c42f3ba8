"""Figures of what encoders score: every task with its interval, and quality against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder2vec.report.figures import COLOURS, QUIET, curve_name, labels, legend_below, log_axis, panels, short
from decoder2vec.report.html import amount
from decoder2vec.report.result_files import COSTS, Task
from decoder2vec.report.standings import Standing, families, family_name, pareto_front

COST_NAMES = {
    "parameters": "parameters (millions)",
    "tokens_per_second": "tokens per second",
    "peak_megabytes": "memory at the peak (MB)",
}
_SCALE = {"parameters": 1e-6}
_PER_ROW = 4


def draw_tasks(rows: Sequence[Standing], file: Path) -> None:
    """One panel for each task, one line for each encoder, best mean on top: score and 95 % interval."""
    tasks = [
        (family, name) for family, names in families([row.evaluation for row in rows]).items() for name in sorted(names)
    ]
    columns = min(_PER_ROW, len(tasks))
    height = -(-len(tasks) // columns)
    size = (2.4 + 2.2 * columns, 0.7 + height * (0.75 + 0.2 * len(rows)))
    with panels(file, "Every task, with 95 % intervals", height, columns, size, True, sharey=True) as (figure, grid):
        figure.get_layout_engine().set(h_pad=0.09)
        for place in range(height * columns):
            axes = grid[place // columns][place % columns]
            if place >= len(tasks):
                axes.set_axis_off()
                continue
            family, name = tasks[place]
            _task_panel(axes, [row.evaluation.tasks.get(name) for row in rows])
            axes.set_title(short(name, 30), fontweight="bold")
            axes.set_xlabel(f"{family_name(family)}, {_metric(rows, name)}", fontsize=7.5)
        grid[0][0].set_yticks(range(len(rows)), labels([row.name for row in rows]))
        grid[0][0].set_ylim(len(rows) - 0.4, -0.6)


def _metric(rows: Sequence[Standing], name: str) -> str:
    return next(short(row.evaluation.tasks[name].metric, 24) for row in rows if name in row.evaluation.tasks)


def _task_panel(axes: Any, found: Sequence[Task | None]) -> None:
    scores = [task.score for task in found if task is not None and math.isfinite(task.score)]
    for row, task in enumerate(found):
        if task is None or not math.isfinite(task.score):
            words = "not run" if task is None else "not a number"
            axes.text(0.02, row, words, transform=axes.get_yaxis_transform(), va="center", size=7, color=QUIET)
            continue
        colour = COLOURS[1] if len(scores) > 1 and task.score == max(scores) else COLOURS[0]
        if math.isfinite(task.low) and math.isfinite(task.high):
            axes.plot([task.low, task.high], [row, row], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="butt")
        axes.plot(task.score, row, "o", color=colour, markersize=5)
        axes.text(1.02, row, f"{task.score:.1f}", transform=axes.get_yaxis_transform(), va="center", size=7)
    if not scores:
        axes.set_xticks([])
    axes.margins(x=0.08)


def draw_cost(rows: Sequence[Standing], file: Path) -> None:
    """Mean score against each cost that is known; the line joins those that no other beats."""
    known = known_costs(rows)
    size = (1.2 + 3.3 * len(known), 4.2 + 0.17 * -(-len(rows) // 3))
    with panels(file, "Quality against cost", 1, len(known), size, True, sharey=True) as (figure, grid):
        for axes, cost in zip(grid[0], known, strict=True):
            _cost_panel(axes, rows, cost)
        grid[0][0].set_ylabel("mean of the families of tasks")
        shown = [curve_name(f"{number}  {name}") for number, name in enumerate(labels([r.name for r in rows]), 1)]
        for name in shown:
            grid[0][0].plot([], [], " ", label=name)
        legend_below(figure, grid[0][0], columns=3)


def known_costs(rows: Sequence[Standing]) -> list[str]:
    """The costs that any encoder with a score has."""
    scored = [row.evaluation.cost for row in rows if math.isfinite(row.overall.value)]
    return [cost for cost in COSTS if any(cost in one for one in scored)]


def _cost_panel(axes: Any, rows: Sequence[Standing], cost: str) -> None:
    front = pareto_front(rows, cost, COSTS[cost])
    scale = _SCALE.get(cost, 1.0)
    points = {
        number: (scale * row.evaluation.cost[cost], row.overall.value)
        for number, row in enumerate(rows)
        if cost in row.evaluation.cost and math.isfinite(row.overall.value)
    }
    if front:
        axes.plot(*zip(*(points[number] for number in front), strict=True), color=COLOURS[1], zorder=1)
    at: dict[tuple[float, float], list[int]] = {}
    for number, point in points.items():
        at.setdefault(point, []).append(number)
    for (x, y), numbers in at.items():
        leads, whole = numbers[0] in front, rows[numbers[0]].overall.complete
        edge = COLOURS[1] if leads else COLOURS[0]
        axes.plot(x, y, "o", markersize=9, color=edge if whole else "white", markeredgecolor=edge, zorder=3)
    prices = [x for x, _ in points.values()]
    if prices and max(prices) > 20 * min(prices):
        log_axis(axes, "x")
        axes.xaxis.set_major_formatter(lambda value, _: amount(value))
    axes.margins(x=0.14, y=0.12)
    _number(axes, at)
    axes.set_xlabel(f"{COST_NAMES[cost]}{': more is better' if COSTS[cost] else ': less is better'}")


def _number(axes: Any, at: dict[tuple[float, float], list[int]]) -> None:
    """The places on the leaderboard beside the points, on that side of each where most room is left."""
    axes.autoscale_view()
    taken = [axes.transData.transform(point) for point in at]
    for point, numbers in at.items():
        x, y = axes.transData.transform(point)
        sides = [(x + right, y + up) for right, up in ((14, 11), (14, -11), (-14, 11), (-14, -11))]
        spot = max(sides, key=lambda side: min(math.dist(side, other) for other in taken))
        taken.append(spot)
        words = ", ".join(str(number + 1) for number in numbers)
        offset = (spot[0] - x, spot[1] - y)
        axes.annotate(words, point, offset, textcoords="offset pixels", size=8, ha="center", va="center", zorder=4)
