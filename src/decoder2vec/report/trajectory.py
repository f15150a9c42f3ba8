"""Checkpoints of one model before and after the same adaptation: the result, its figures and its part of a page.

`training/trajectory.py` writes the result. The questions are those of Amuro & Char (Sun and Dredze, 2024): which
checkpoint gains from adaptation, when was a task learned, what is lost elsewhere, how much does the format matter?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.maths.change import Learned, MeanRatio, learned_when, mean_ratio_of_change
from decoder2vec.report.changes import SMALLEST_BASE, format_ratio
from decoder2vec.report.figures import (
    COLOURS,
    GREY,
    MARKERS,
    Figure,
    format_points,
    format_signed,
    legend_below,
    legend_label,
    panels,
    plural,
    shorten,
)
from decoder2vec.report.html import Cell, Html, Table, bullets, figure, folded, join, paragraph, table
from decoder2vec.report.result_files import TRAJECTORY_FILE
from decoder2vec.storage import read_json

_DEFAULT_RISE = 2.0
"""Points that scores must rise to count as learned, where their intervals are not known."""
_MAX_COLUMNS = 4
_LEGEND = (
    "A task rises if its score before adaptation rises over the checkpoints by more than the uncertainty of the "
    "difference; it is learned at the first checkpoint with 90 % of the rise. Constant: the score of a prediction that "
    f"ignores the texts. Ratios of scores below {SMALLEST_BASE:g} points and of tasks trained on are left out."
)


@dataclass(frozen=True)
class RunScore:
    """A score in points with its 95 % interval over items."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CheckpointRun:
    """The scores of one checkpoint: before adaptation or after it, with or without the instruction."""

    checkpoint: str
    seed: int | None
    """Seed of the adaptation; None: before it."""
    instructed: bool
    scores: Mapping[str, RunScore]
    """By task."""

    def to_json(self) -> dict[str, Any]:
        """The run as a document."""
        scores = {name: [score.value, score.low, score.high] for name, score in self.scores.items()}
        return {"checkpoint": self.checkpoint, "seed": self.seed, "instructed": self.instructed, "scores": scores}

    @classmethod
    def from_json(cls, document: Any) -> CheckpointRun:
        """The run of a document."""
        scores = {name: RunScore(*map(float, values)) for name, values in document["scores"].items()}
        return cls(document["checkpoint"], document["seed"], document["instructed"], scores)


@dataclass(frozen=True)
class TrajectoryTask:
    """A task that every checkpoint is scored on."""

    kind: str
    metric: str
    constant: float
    """The score of a constant prediction."""


@dataclass(frozen=True)
class TrajectoryResult:
    """Scores of checkpoints before and after adaptation, and what follows from them."""

    model: str
    checkpoints: tuple[str, ...]
    """In the order of training."""
    tasks: Mapping[str, TrajectoryTask]
    runs: tuple[CheckpointRun, ...]
    adaptation: str = ""
    """What was trained at every checkpoint; empty: nothing."""
    trained_on: tuple[str, ...] = ()
    """Tasks that the adaptation was for."""
    key: str = ""
    """Hash of everything that the scores depend on; results with another key are not continued."""
    command: str = ""

    @classmethod
    def load(cls, path: str | Path) -> TrajectoryResult:
        """Read the result of `Trajectory.run` from its folder or file.

        Raises:
            DataFileError: There is no such file, or it is none of a trajectory.
        """
        file = Path(path) / TRAJECTORY_FILE if Path(path).is_dir() else Path(path)
        document = read_json(file, "run the trajectory again")
        try:
            return cls.from_json(document)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataFileError(f"{file} is no result of a trajectory ({error}); run it again.") from None

    @classmethod
    def from_json(cls, document: Any) -> TrajectoryResult:
        """The result of a document."""
        return cls(
            document["model"],
            tuple(document["checkpoints"]),
            {name: TrajectoryTask(**task) for name, task in document["tasks"].items()},
            tuple(map(CheckpointRun.from_json, document["runs"])),
            document["adaptation"],
            tuple(document["trained_on"]),
            document["key"],
            document.get("command", ""),
        )

    def to_json(self) -> dict[str, Any]:
        """The result as a document: all scores, and a summary by checkpoint."""
        return {
            "kind": "trajectory",
            "model": self.model,
            "checkpoints": list(self.checkpoints),
            "tasks": {name: vars(task) for name, task in self.tasks.items()},
            "adaptation": self.adaptation,
            "trained_on": list(self.trained_on),
            "runs": [run.to_json() for run in self.runs],
            "summary": self._summary(),
            "key": self.key,
            "command": self.command,
        }

    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        gain_by_task, sensitivity = self.gain(), self.format_sensitivity()
        for checkpoint in self.checkpoints:
            ratio = self.mean_ratio_of_change(checkpoint)
            gains = [gains[checkpoint] for gains in gain_by_task.values() if checkpoint in gains]
            summary[checkpoint] = {
                "mean_gain": float(np.mean(gains)) if gains else None,
                "mean_ratio_of_change": None if ratio is None else ratio.value,
                "format_sensitivity": sensitivity.get(checkpoint),
            }
        return summary

    def run(self, checkpoint: str, seed: int | None = None, *, instructed: bool = False) -> CheckpointRun | None:
        """One run, or None if it is not finished."""
        key = (checkpoint, seed, instructed)
        return next((run for run in self.runs if (run.checkpoint, run.seed, run.instructed) == key), None)

    def before(self, task: str) -> dict[str, float]:
        """The score of a task before adaptation, by checkpoint."""
        runs = {name: self.run(name) for name in self.checkpoints}
        return {name: run.scores[task].value for name, run in runs.items() if run}

    def after(self, task: str) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation over seeds of the score after adaptation, by checkpoint.

        The deviation of a single seed is NaN.
        """
        scores: dict[str, tuple[float, float]] = {}
        for checkpoint in self.checkpoints:
            if values := [run.scores[task].value for run in self._adapted(checkpoint)]:
                deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
                scores[checkpoint] = (float(np.mean(values)), deviation)
        return scores

    def gain(self) -> dict[str, dict[str, float]]:
        """Points after adaptation (mean over seeds) minus points before it, by task and checkpoint."""
        gains: dict[str, dict[str, float]] = {}
        for task in self.tasks:
            before = self.before(task)
            gains[task] = {name: mean - before[name] for name, (mean, _) in self.after(task).items() if name in before}
        return gains

    def mean_ratio_of_change(self, checkpoint: str | None = None) -> MeanRatio | None:
        """The mean ratio of change over the tasks that were not trained on, at one checkpoint or over all.

        Tasks with less than 5 points before adaptation are left out, since their ratios say nothing; None if no task
        is left.
        """
        before, after = [], []
        for task in self.tasks:
            adapted = self.after(task)
            for name, score in self.before(task).items():
                chosen = checkpoint in (None, name) and name in adapted
                if chosen and task not in self.trained_on and score >= SMALLEST_BASE:
                    before.append(score)
                    after.append(adapted[name][0])
        return mean_ratio_of_change(before, after) if before else None

    def learned_when(self) -> dict[str, Learned]:
        """For each task when it was learned, by its scores before adaptation; none if there is one checkpoint only."""
        learned = {}
        for task in self.tasks:
            runs = [run for name in self.checkpoints if (run := self.run(name))]
            scores = [run.scores[task] for run in runs]
            if len(scores) > 1:
                best = max(scores, key=lambda score: score.value)
                learned[task] = learned_when([score.value for score in scores], _uncertainty(scores[0], best))
        return learned

    def group_gains(self) -> dict[str, dict[str, float]]:
        """The mean gain by checkpoint of the tasks that rise in pre-training, and of those that are flat."""
        groups: dict[str, dict[str, list[float]]] = {"rising": {}, "flat": {}}
        learned = self.learned_when()
        for task, gains in self.gain().items():
            if task in learned:
                for checkpoint, gain in gains.items():
                    groups["rising" if learned[task].rises else "flat"].setdefault(checkpoint, []).append(gain)
        return {
            group: {name: float(np.mean(values)) for name, values in gains.items()} for group, gains in groups.items()
        }

    def format_sensitivity(self) -> dict[str, dict[str, float]]:
        """By checkpoint, "before" and "after" adaptation: how many points the instruction changes a task on average."""
        sensitivity: dict[str, dict[str, float]] = {}
        for checkpoint in self.checkpoints:
            for state, runs in (("before", [self.run(checkpoint)]), ("after", self._adapted(checkpoint))):
                pairs = [(run, self.run(checkpoint, run.seed, instructed=True)) for run in runs if run]
                changes = [
                    abs(other.scores[task].value - run.scores[task].value)
                    for run, other in pairs
                    if other
                    for task in run.scores
                ]
                if changes:
                    sensitivity.setdefault(checkpoint, {})[state] = float(np.mean(changes))
        return sensitivity

    def plot(self, folder: str | Path) -> list[Path]:
        """Draw all figures as PNG into a folder, and return their paths."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [drawn.file for drawn in draw_trajectory(self, Path(folder)) if drawn.file]

    def _adapted(self, checkpoint: str) -> list[CheckpointRun]:
        """The runs after adaptation without the instruction, one for each seed."""
        return [
            run for run in self.runs if run.checkpoint == checkpoint and run.seed is not None and not run.instructed
        ]


def _uncertainty(first: RunScore, best: RunScore) -> float:
    """Half the width of the 95 % interval of a difference, from the intervals of both scores."""
    widths = [(score.high - score.low) / 2 for score in (first, best)]
    return math.hypot(*widths) if all(map(math.isfinite, widths)) else _DEFAULT_RISE


# --- figures and the part of a page ---------------------------------------------------------------------------------


def draw_trajectory(result: TrajectoryResult, out: Path, stem: str = "trajectory") -> list[Figure]:
    """Draw the scores of every task over the checkpoints, and what adaptation gains."""
    if len(result.checkpoints) < 2:
        return [Figure("Scores over the checkpoints", "it needs two checkpoints.")]
    figures = [_draw_tasks(result, out / f"{stem}-tasks.png")]
    if result.adaptation:
        figures.append(_draw_gains(result, out / f"{stem}-gain.png"))
    return figures


def _draw_tasks(result: TrajectoryResult, file: Path) -> Figure:
    names = list(result.tasks)
    n_columns = min(_MAX_COLUMNS, len(names))
    n_rows = -(-len(names) // n_columns)
    title = f"Checkpoints of {shorten(result.model, 60)}"
    with panels(file, title, n_rows, n_columns, (1.2 + 2.4 * n_columns, 1.2 + 2.0 * n_rows), with_svg=True) as (
        drawing,
        grid,
    ):
        for axes in grid.flat[len(names) :]:
            axes.set_axis_off()
        for axes, name in zip(grid.flat, names, strict=False):
            _draw_task(axes, result, name)
        legend_below(drawing, grid[0][0])
    caption = (
        "Before adaptation with 95 % intervals over items; after adaptation the mean over seeds, and one deviation."
    )
    return Figure("Scores over the checkpoints", caption, file)


def _draw_task(axes: Any, result: TrajectoryResult, task: str) -> None:
    positions = {name: index for index, name in enumerate(result.checkpoints)}
    runs = [run for name in result.checkpoints if (run := result.run(name))]
    before = [run.scores[task] for run in runs]
    x = [positions[run.checkpoint] for run in runs]
    axes.plot(x, [score.value for score in before], "o-", color=COLOURS[0], label="before")
    axes.fill_between(x, [s.low for s in before], [s.high for s in before], color=COLOURS[0], alpha=0.15, linewidth=0)
    if after := result.after(task):
        means, deviations = zip(*after.values(), strict=True)
        bars = np.nan_to_num(deviations)
        axes.errorbar([positions[name] for name in after], means, bars, fmt="s-", color=COLOURS[1], label="after")
    axes.axhline(result.tasks[task].constant, color=GREY, linestyle=":", label="constant prediction")
    axes.set_title(shorten(task, 30), fontweight="bold")
    _name_checkpoints(axes, result)


def _draw_gains(result: TrajectoryResult, file: Path) -> Figure:
    sensitivity = result.format_sensitivity()
    n_panels = 3 if sensitivity else 2
    title = f"Adaptation of every checkpoint: {shorten(result.adaptation, 60)}"
    with panels(file, title, 1, n_panels, (1.0 + 3.2 * n_panels, 3.2), with_svg=True) as (_, grid):
        _draw_curves(grid[0][0], result, result.group_gains(), "mean gain in points")
        ratios = {
            name: 100 * ratio.value for name in result.checkpoints if (ratio := result.mean_ratio_of_change(name))
        }
        _draw_curves(grid[0][1], result, {"tasks not trained on": ratios}, "mean ratio of change in %")
        if sensitivity:
            curves = {
                state: {name: values[state] for name, values in sensitivity.items() if state in values}
                for state in ("before", "after")
            }
            _draw_curves(grid[0][2], result, curves, "change by the instruction in points")
    caption = "Rising: tasks whose score before adaptation rises over the checkpoints; flat: the others."
    return Figure("What adaptation gains", caption, file)


def _draw_curves(axes: Any, result: TrajectoryResult, curves: Mapping[str, Mapping[str, float]], label: str) -> None:
    positions = {name: index for index, name in enumerate(result.checkpoints)}
    axes.axhline(0, color=GREY, linewidth=1)
    for number, (name, values) in enumerate(curves.items()):
        if values:
            x = [positions[checkpoint] for checkpoint in values]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(x, list(values.values()), f"{marker}-", color=COLOURS[number], label=legend_label(name))
    axes.set_ylabel(label)
    axes.legend()
    _name_checkpoints(axes, result)


def _name_checkpoints(axes: Any, result: TrajectoryResult) -> None:
    names = [shorten(name, 14) for name in result.checkpoints]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)


def describe_trajectory(result: TrajectoryResult) -> list[str]:
    """The main findings, each in a sentence."""
    sentences = []
    if best := _best_after(result):
        name, score, state = best
        sentences.append(f"Best mean {state} adaptation: checkpoint {name} with {format_points(score)} points.")
    if ratio := result.mean_ratio_of_change():
        interval = f", 95 % [{100 * ratio.low:+.1f}, {100 * ratio.high:+.1f}]" if math.isfinite(ratio.low) else ""
        count = plural(len(ratio.ratios), "score")
        sentences.append(f"Mean ratio of change elsewhere: {format_ratio(ratio.value)} over {count}{interval}.")
    learned = result.learned_when()
    if rising := [
        f"{task} at {result.checkpoints[when.checkpoint or 0]}" for task, when in learned.items() if when.rises
    ]:
        sentences.append(f"Learned in pre-training: {', '.join(rising)}.")
    if flat := [task for task, when in learned.items() if not when.rises]:
        sentences.append(f"Flat over the checkpoints: {', '.join(flat)}.")
    return sentences


def _best_after(result: TrajectoryResult) -> tuple[str, float, str] | None:
    """The checkpoint with the best mean over tasks, its mean, and whether that is after adaptation or before."""
    after = {task: {name: mean for name, (mean, _) in result.after(task).items()} for task in result.tasks}
    state = "after" if any(after.values()) else "before"
    scores = after if state == "after" else {task: result.before(task) for task in result.tasks}
    complete = [name for name in result.checkpoints if all(name in values for values in scores.values())]
    if not complete:
        return None
    means = {name: float(np.mean([values[name] for values in scores.values()])) for name in complete}
    best = max(means, key=lambda name: means[name])
    return best, means[best], state


def trajectory_table(result: TrajectoryResult) -> Table:
    """One row for each task and checkpoint: before, after, gain, the constant prediction."""
    rows = []
    gains = result.gain()
    for task, about in result.tasks.items():
        after = result.after(task)
        for checkpoint, before in result.before(task).items():
            mean, deviation = after.get(checkpoint, (math.nan, math.nan))
            known = math.isfinite(mean)
            small = f"± {deviation:.1f}" if math.isfinite(deviation) else ""
            gain = gains[task].get(checkpoint, math.nan)
            rows.append(
                [
                    Cell(task, small="trained on" if task in result.trained_on else ""),
                    Cell(checkpoint),
                    Cell(format_points(before), before),
                    Cell(format_points(mean), mean, small) if known else Cell("–"),
                    Cell(format_signed(gain), gain) if known else Cell("–"),
                    Cell(format_points(about.constant), about.constant),
                ]
            )
    headings = ["task", "checkpoint", "before", "after", "gain", "constant"]
    return Table(f"Trajectory of {result.model}", "Scores in points", headings, rows, text_columns=(1,), sortable=True)


def trajectory_section(result: TrajectoryResult, figures: Sequence[Figure]) -> Html:
    """The part of a page on one trajectory."""
    return join(
        bullets(describe_trajectory(result)),
        *map(figure, figures),
        folded("Every score", table(trajectory_table(result), with_title=False)),
        paragraph(_LEGEND, muted=True),
    )
