"""What a training changed elsewhere: each task before and after it, the gain, and the mean ratio of change.

The first encoder is the one before; every other is compared with it. A ratio of a score near 0 is huge whatever the
training did, and labels that are constant measure nothing: such tasks are listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.errors import unknown_name
from decoder2vec.maths.bootstrap import Difference, Floats, difference
from decoder2vec.maths.change import MeanRatio, mean_ratio_of_change
from decoder2vec.report.differences import Differences
from decoder2vec.report.figures import (
    COLOURS,
    GREY,
    Figure,
    format_points,
    format_signed,
    panels,
    plural,
    shorten,
    unique_labels,
)
from decoder2vec.report.html import Cell, Html, Table, bullets, figure, folded, join, paragraph, table
from decoder2vec.report.ranking import drop_tuning_sets, tasks_by_family
from decoder2vec.report.result_files import Evaluation, TaskScore

SMALLEST_BASE = 5.0
"""Points: a smaller score before makes a ratio that says nothing."""
_MAX_PANELS = 6
_LEGEND = (
    "Gain: points after minus points before; marked if the 95 % interval of a paired bootstrap over items excludes 0. "
    "Ratio: gain divided by the score before. Constant: the score of a prediction that ignores the texts; an ability "
    "that is not above it cannot be lost. The mean ratio of change is over the tasks that were not trained on."
)


@dataclass(frozen=True)
class TaskChange:
    """One task before and after a training, in points."""

    name: str
    family: str
    before: float
    after: float
    constant: float
    """The score of a constant prediction; NaN if it is not known."""
    interval: Difference | None
    """The gain with its interval over items; None without per-item results."""
    left_out: str = ""
    """Why the task is no part of the mean ratio of change; empty if it is."""

    @property
    def gain(self) -> float:
        """Points after minus points before."""
        return self.after - self.before

    @property
    def ratio(self) -> float:
        """The gain divided by the score before; NaN if that is not above 0."""
        return self.gain / self.before if self.before > 0 else math.nan

    @property
    def knew_nothing(self) -> bool:
        """Whether the score before is known to be no better than a constant prediction."""
        return self.before <= self.constant

    def to_json(self) -> dict[str, Any]:
        """The change as a document; what is not known is None."""
        interval = self.interval
        return {
            "kind": self.family,
            "before": self.before,
            "after": self.after,
            "constant_score": _known(self.constant),
            "gain": round(self.gain, 4),
            "gain_95": None if interval is None else [round(interval.low, 4), round(interval.high, 4)],
            "ratio": _known(self.ratio),
            "left_out": self.left_out or None,
        }


@dataclass(frozen=True)
class Change:
    """All tasks of two encoders, before and after a training."""

    before: str
    after: str
    tasks: tuple[TaskChange, ...]
    refused: tuple[str, ...]
    """Tasks that cannot be compared at all, each with the reason."""
    mean_ratio: MeanRatio | None
    """Over the tasks that were not trained on, with an interval over tasks; None if no task is left."""
    item_interval: tuple[float, float] | None
    """The interval of the mean ratio over items of the same tasks; None if one has no per-item results."""

    @property
    def elsewhere(self) -> list[TaskChange]:
        """The tasks that the mean ratio of change is over."""
        return [task for task in self.tasks if not task.left_out]

    def to_json(self) -> dict[str, Any]:
        """The change as a document."""
        ratio = self.mean_ratio
        return {
            "before": self.before,
            "after": self.after,
            "mean_ratio_of_change": None if ratio is None else ratio.value,
            "over_tasks_95": None if ratio is None else [_known(ratio.low), _known(ratio.high)],
            "over_items_95": None if self.item_interval is None else list(self.item_interval),
            "tasks": {task.name: task.to_json() for task in self.tasks},
            "refused": list(self.refused),
        }


def measure_changes(evaluations: Sequence[Evaluation], trained_on: Sequence[str] = ()) -> list[Change]:
    """The change from the first encoder to each of the others.

    Args:
        evaluations: The encoder before, then one or more after.
        trained_on: Tasks and kinds of tasks that the training was for; they are no part of the mean ratio of change.

    Raises:
        UnknownNameError: A name in `trained_on` is neither a task nor a kind of these evaluations.
    """
    evaluations, _ = drop_tuning_sets(evaluations)
    families = tasks_by_family(evaluations)
    known = [*families, *(name for names in families.values() for name in names)]
    for name in trained_on:
        if name not in known:
            raise unknown_name("task", name, known)
    differences = Differences(evaluations)
    return [_change(evaluations, index, differences, families, trained_on) for index in range(1, len(evaluations))]


def _change(
    evaluations: Sequence[Evaluation],
    index: int,
    differences: Differences,
    families: Mapping[str, Sequence[str]],
    trained_on: Sequence[str],
) -> Change:
    old, new = evaluations[0], evaluations[index]
    changes, refused = [], []
    samples: dict[str, tuple[Floats, Floats] | None] = {}
    for family, names in families.items():
        for name in names:
            if reason := _refusal(old, new, name):
                refused.append(f"{name}: {reason}")
                continue
            samples[name] = pair = differences.samples(0, index, name)
            before, after = old.tasks[name], new.tasks[name]
            interval = None if pair is None else difference(after.score - before.score, pair[1] - pair[0])
            left_out = _left_out(before, name in trained_on or family in trained_on)
            constant = after.constant if math.isnan(before.constant) else before.constant
            changes.append(TaskChange(name, family, before.score, after.score, constant, interval, left_out))
    elsewhere = [task for task in changes if not task.left_out]
    ratio = None
    if elsewhere:
        ratio = mean_ratio_of_change([task.before for task in elsewhere], [task.after for task in elsewhere])
    items = _item_interval([samples[task.name] for task in elsewhere])
    return Change(old.name, new.name, tuple(changes), tuple(refused), ratio, items)


def _refusal(old: Evaluation, new: Evaluation, name: str) -> str:
    """Why a task cannot be compared; empty if it can."""
    missing = [evaluation.name for evaluation in (old, new) if name not in evaluation.tasks]
    if missing:
        return f"{' and '.join(missing)} {'have' if len(missing) > 1 else 'has'} no score for it."
    before, after = old.tasks[name], new.tasks[name]
    if not (math.isfinite(before.score) and math.isfinite(after.score)):
        return "a score is not a number."
    if before.metric != after.metric:
        return f"scored by {before.metric} before and by {after.metric} after; evaluate both again."
    for task in (before, after):
        gold = task.items.gold if task.items is not None else None
        if gold is not None and gold.size and gold.min() == gold.max():
            return f"every label is {gold[0]:g}, so they are hidden or constant, and a score means nothing."
    return ""


def _left_out(before: TaskScore, trained: bool) -> str:
    """Why a task is no part of the mean ratio of change; empty if it is."""
    if trained:
        return "trained on"
    if before.score < SMALLEST_BASE:
        return f"{format_points(before.score)} before is too little for a ratio"
    return ""


def _item_interval(samples: Sequence[tuple[Floats, Floats] | None]) -> tuple[float, float] | None:
    """95 % interval of the mean ratio over items, with tasks resampled separately."""
    known = [pair for pair in samples if pair is not None]
    if not known or len(known) < len(samples) or any((before <= 0).any() for before, _ in known):
        return None
    means = np.mean([(after - before) / before for before, after in known], axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


# sentences, tables and figures


def describe_change(change: Change) -> str:
    """What the training did elsewhere, in a sentence or two."""
    if change.mean_ratio is None:
        return f"{change.after}: no task is left that it was not trained on and that has a score to lose."
    ratio, n_tasks = change.mean_ratio, len(change.elsewhere)
    parts = [f"mean ratio of change {format_ratio(ratio.value)} over {plural(n_tasks, 'task')}"]
    if math.isfinite(ratio.low):
        parts.append(f"95 % over tasks {_format_interval(ratio.low, ratio.high)}")
    if change.item_interval is not None:
        parts.append(f"over items {_format_interval(*change.item_interval)}")
    losses = sorted((task for task in change.elsewhere if task.gain < 0), key=lambda task: task.gain)
    lost = ", ".join(f"{task.name} {format_signed(task.gain)}" for task in losses[:3])
    tail = f"Worse on {len(losses)}, most on {lost}." if losses else "Worse on none."
    return f"{change.after}: {', '.join(parts)}. {tail}"


def format_ratio(ratio: float) -> str:
    """A ratio in percent with its sign."""
    return f"{100 * ratio:+.1f} %" if math.isfinite(ratio) else "–"


def _format_interval(low: float, high: float) -> str:
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]"


def change_table(change: Change) -> Table:
    """Every task of one change: both scores, the constant prediction, gain, ratio and remarks."""
    rows = []
    for task in change.tasks:
        interval = task.interval
        small = "" if interval is None else f"{interval.low:+.1f} to {interval.high:+.1f}"
        sign = "higher" if task.gain > 0 else "lower"
        remark = task.left_out or ("not above constant before" if task.knew_nothing else "")
        rows.append(
            [
                Cell(task.name, small=remark),
                Cell(format_points(task.before), task.before),
                Cell(format_points(task.after), task.after),
                Cell(format_points(task.constant), task.constant) if math.isfinite(task.constant) else Cell("–"),
                Cell(
                    format_signed(task.gain), task.gain, small, mark=sign if interval and interval.significant else ""
                ),
                Cell(format_ratio(task.ratio), task.ratio if math.isfinite(task.ratio) else None),
            ]
        )
    headings = ["task", "before", "after", "constant", "gain", "ratio"]
    return Table(f"{change.before} → {change.after}", "Scores in points", headings, rows, sortable=True)


def draw_changes(changes: Sequence[Change], file: Path) -> Figure:
    """Draw the gain of every task with its interval, one panel for each encoder after."""
    shown = changes[:_MAX_PANELS]
    names = list(dict.fromkeys(task.name for change in shown for task in change.tasks))
    if not names:
        return Figure("Gain by task", "no task has a score before and after.")
    size = (1.6 + 2.6 * len(shown), 1.2 + 0.22 * len(names))
    title = f"Gain by task over {shorten(changes[0].before, 50)}"
    with panels(file, title, 1, len(shown), size, with_svg=True, sharex=True, sharey=True) as (_, grid):
        for axes, change, label in zip(grid[0], shown, unique_labels([one.after for one in shown]), strict=True):
            axes.axvline(0, color=GREY, linewidth=1)
            for task in change.tasks:
                row = names.index(task.name)
                colour = GREY if task.left_out else COLOURS[0] if task.gain >= 0 else COLOURS[1]
                axes.barh(row, task.gain, color=colour, alpha=0.75, height=0.62)
                if task.interval is not None:
                    axes.plot([task.interval.low, task.interval.high], [row, row], color="#000000", linewidth=1)
            axes.set_title(label, fontweight="bold")
            axes.set_xlabel("gain in points")
        grid[0][0].set_yticks(range(len(names)), [shorten(name, 30) for name in names])
        grid[0][0].set_ylim(len(names) - 0.4, -0.6)
    more = f" The first {_MAX_PANELS} of {len(changes)}." if len(changes) > len(shown) else ""
    caption = (
        "Bars: points after minus before; grey ones are no part of the mean ratio of change. "
        f"Lines: 95 % intervals over items.{more}"
    )
    return Figure("Gain by task", caption, file)


def changes_section(changes: Sequence[Change], drawing: Figure) -> Html:
    """The part of a page on all changes."""
    tables = [change_table(change) for change in changes]
    refused = list(dict.fromkeys(f"{change.after}: {line}" for change in changes for line in change.refused))
    return join(
        bullets(map(describe_change, changes)),
        figure(drawing, with_title=False),
        *(folded(data.title, table(data, with_title=False), is_open=n == 0) for n, data in enumerate(tables)),
        folded(f"Not compared ({len(refused)})", bullets(refused), is_open=True),
        paragraph(_LEGEND, muted=True),
    )


def format_gains(change: Change) -> list[float]:
    """What an instruction changes, in points of each task."""
    return [task.gain for task in change.tasks]


def describe_format(change: Change) -> str:
    """How sensitive an encoder is to an instruction, in a sentence; `change` goes from without it to with it."""
    gains = np.array(format_gains(change))
    if not gains.size:
        return f"{change.before}: no task was scored with and without the instruction."
    return (
        f"{change.before}: the instruction changes a task by {np.abs(gains).mean():.1f} points on average "
        f"(mean gain {format_signed(float(gains.mean()))}, between {format_signed(float(gains.min()))} and "
        f"{format_signed(float(gains.max()))})."
    )


def format_section(changes: Sequence[Change]) -> Html:
    """The part of a page on the sensitivity of encoders to an instruction."""
    tables = [change_table(change) for change in changes]
    return join(
        bullets(map(describe_format, changes)), *(folded(data.title, table(data, with_title=False)) for data in tables)
    )
