"""Figures of evaluated encoders: the score of every task with its interval, and quality against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.calibration import CalibrationResult
from decoder2vec.maths.probability import reliability
from decoder2vec.report.figures import (
    COLOURS,
    GREY,
    format_count,
    legend_below,
    legend_label,
    log_axis,
    panels,
    shorten,
    unique_labels,
)
from decoder2vec.report.ranking import RankedEncoder, family_name, known_costs, pareto_front, tasks_by_family
from decoder2vec.report.result_files import COSTS, TaskScore

_COST_LABELS = {
    "parameters": "parameters (millions)",
    "tokens_per_second": "tokens per second",
    "peak_megabytes": "peak memory (MB)",
}
_COST_SCALES = {"parameters": 1e-6}
_MAX_COLUMNS = 4


def draw_tasks(rows: Sequence[RankedEncoder], file: Path) -> None:
    """Draw score and 95 % interval: one panel for each task, one line for each encoder, best mean on top."""
    families = tasks_by_family([row.evaluation for row in rows])
    tasks = [(family, name) for family, names in families.items() for name in sorted(names)]
    n_columns = min(_MAX_COLUMNS, len(tasks))
    n_rows = -(-len(tasks) // n_columns)
    size = (2.4 + 2.2 * n_columns, 0.7 + n_rows * (0.75 + 0.2 * len(rows)))
    title = "Every task, with 95 % intervals"
    with panels(file, title, n_rows, n_columns, size, with_svg=True, sharey=True) as (figure, grid):
        figure.get_layout_engine().set(h_pad=0.09)
        for axes in grid.flat[len(tasks) :]:
            axes.set_axis_off()
        for axes, (family, name) in zip(grid.flat, tasks, strict=False):
            scores = [row.evaluation.tasks.get(name) for row in rows]
            _draw_task(axes, scores)
            metric = next(shorten(score.metric, 24) for score in scores if score is not None)
            axes.set_title(shorten(name, 30), fontweight="bold")
            axes.set_xlabel(f"{family_name(family)}, {metric}", fontsize=7.5)
        grid[0][0].set_yticks(range(len(rows)), unique_labels([row.name for row in rows]))
        grid[0][0].set_ylim(len(rows) - 0.4, -0.6)


def _draw_task(axes: Any, scores: Sequence[TaskScore | None]) -> None:
    finite = [task.score for task in scores if task is not None and math.isfinite(task.score)]
    for row, task in enumerate(scores):
        if task is None or not math.isfinite(task.score):
            reason = "not run" if task is None else "not a number"
            axes.text(0.02, row, reason, transform=axes.get_yaxis_transform(), va="center", size=7, color=GREY)
            continue
        colour = COLOURS[1] if len(finite) > 1 and task.score == max(finite) else COLOURS[0]
        if math.isfinite(task.low) and math.isfinite(task.high):
            axes.plot([task.low, task.high], [row, row], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="butt")
        axes.plot(task.score, row, "o", color=colour, markersize=5)
        axes.text(1.02, row, f"{task.score:.1f}", transform=axes.get_yaxis_transform(), va="center", size=7)
    if not finite:
        axes.set_xticks([])
    axes.margins(x=0.08)


def draw_cost(rows: Sequence[RankedEncoder], file: Path) -> None:
    """Draw the mean score against each known cost; a line joins the Pareto front."""
    costs = known_costs(rows)
    size = (1.2 + 3.3 * len(costs), 4.2 + 0.17 * -(-len(rows) // 3))
    with panels(file, "Quality against cost", 1, len(costs), size, with_svg=True, sharey=True) as (figure, grid):
        for axes, cost in zip(grid[0], costs, strict=True):
            _draw_cost_panel(axes, rows, cost)
        grid[0][0].set_ylabel("mean over task families")
        for rank, name in enumerate(unique_labels([row.name for row in rows]), 1):
            grid[0][0].plot([], [], " ", label=legend_label(f"{rank}  {name}"))
        legend_below(figure, grid[0][0], columns=3)


def _draw_cost_panel(axes: Any, rows: Sequence[RankedEncoder], cost: str) -> None:
    front = pareto_front(rows, cost, COSTS[cost])
    scale = _COST_SCALES.get(cost, 1.0)
    points = {
        index: (scale * row.evaluation.cost[cost], row.overall.value)
        for index, row in enumerate(rows)
        if cost in row.evaluation.cost and math.isfinite(row.overall.value)
    }
    if front:
        axes.plot(*zip(*(points[index] for index in front), strict=True), color=COLOURS[1], zorder=1)
    rows_at: dict[tuple[float, float], list[int]] = {}
    for index, point in points.items():
        rows_at.setdefault(point, []).append(index)
    for (x, y), indices in rows_at.items():
        edge = COLOURS[1] if indices[0] in front else COLOURS[0]
        fill = edge if rows[indices[0]].overall.complete else "white"
        axes.plot(x, y, "o", markersize=9, color=fill, markeredgecolor=edge, zorder=3)
    values = [x for x, _ in points.values()]
    if values and max(values) > 20 * min(values):
        log_axis(axes, "x")
        axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
    axes.margins(x=0.14, y=0.12)
    _draw_ranks(axes, rows_at)
    axes.set_xlabel(f"{_COST_LABELS[cost]}: {'more' if COSTS[cost] else 'less'} is better")


def _draw_ranks(axes: Any, rows_at: dict[tuple[float, float], list[int]]) -> None:
    """Write the ranks next to the points, each on the side with most room."""
    axes.autoscale_view()
    occupied = [axes.transData.transform(point) for point in rows_at]
    for point, indices in rows_at.items():
        x, y = axes.transData.transform(point)
        sides = [(x + right, y + up) for right, up in ((14, 11), (14, -11), (-14, 11), (-14, -11))]
        spot = max(sides, key=lambda side: min(math.dist(side, other) for other in occupied))
        occupied.append(spot)
        ranks = ", ".join(str(index + 1) for index in indices)
        offset = (spot[0] - x, spot[1] - y)
        axes.annotate(ranks, point, offset, textcoords="offset pixels", size=8, ha="center", va="center", zorder=4)


def draw_reliability(result: CalibrationResult, file: Path) -> None:
    """Draw for each score the curve with its interval, and the shares of positives that it should go through."""
    names = list(result.scores)
    title = f"Probability of a positive pair, from {len(result.labels)} labelled pairs"
    with panels(file, title, 1, len(names), (0.8 + 3.1 * len(names), 3.4), sharey=True) as (_, grid):
        for axes, name in zip(grid[0], names, strict=True):
            calibrated = result.scores[name]
            scores = np.linspace(calibrated.scores.min(), calibrated.scores.max(), 100)
            middle, low, high = calibrated.curve.of(scores)
            axes.fill_between(scores, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="95 % interval")
            axes.plot(scores, middle, color=COLOURS[0], label="fitted")
            means, shares, _ = zip(*reliability(calibrated.scores, result.labels), strict=True)
            axes.plot(means, shares, "o", color=COLOURS[1], label="positives among a tenth of the pairs")
            axes.set_xlabel(name)
        grid[0][0].set_ylabel("probability")
        grid[0][0].legend(loc="upper left")
