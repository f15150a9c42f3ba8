"""Figures of how one run was trained and how it errs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.drawing import COLOURS, QUIET, legend_below, panels, whole_numbers
from decoder2vec.analysis.report.record import History, Run

_SCORES = {"autoencoders": "error on held-out texts", "inference": "held-out accuracy in %"}
_NAMES = {"training": "human scores", "training after selection": "after selection"}


def draw_training(run: Run, file: Path) -> None:
    """Loss and score of every epoch, one row of panels for each stage and one colour for each seed."""
    stages = list(dict.fromkeys(history.name for seed in run.seeds for history in seed.histories))
    title = f"{run.name}: training by {len(run.seeds)} seed{'s' * (len(run.seeds) > 1)}"
    with panels(file, title, len(stages), 2, (7.4, 1.1 + 2.3 * len(stages))) as (figure, grid):
        for row, stage in zip(grid, stages, strict=True):
            for number, seed in enumerate(run.seeds):
                for history in seed.histories:
                    if history.name == stage:
                        _history(row, history, COLOURS[number % len(COLOURS)], f"seed {seed.number}", run.metric)
            for axes in row:
                axes.set_xlabel("epoch")
                whole_numbers(axes.xaxis)
        legend_below(figure, grid[0][0], columns=8)


def _history(row: Sequence[Any], history: History, colour: str, label: str, metric: str) -> None:
    what = _NAMES.get(history.name, f"pre-training, {history.stage}")
    epochs = range(1, len(history.losses) + 1)
    row[0].plot(epochs, history.losses, color=colour, marker=".", label=label)
    row[0].set_title(f"{what}: loss")
    row[0].set_ylabel("mean training loss")
    sign = -1 if history.stage == "autoencoders" else 1  # the loop maximises, people read an error
    scores = sign * np.array([history.start, *history.scores])
    row[1].plot(range(len(scores)), np.where(np.isfinite(scores), scores, np.nan), color=colour, marker=".")
    if 0 <= history.best + 1 < len(scores):
        row[1].plot(history.best + 1, scores[history.best + 1], "*", color=colour, markersize=11)
    row[1].set_title(f"{what}: {'error' if sign < 0 else 'score'}")
    row[1].set_ylabel(_SCORES.get(history.stage, f"{metric.capitalize()} on dev x 100"))


def draw_errors(run: Run, file: Path) -> None:
    """The distribution of the errors, and its quantiles against those of a normal one."""
    assert run.errors is not None
    errors = np.array(run.errors.values)
    mean, deviation = float(errors.mean()), float(errors.std())
    title = f"{run.name} on {run.errors.data}: the score is {_leaning(mean)}, give or take {deviation:.2f}"
    with panels(file, title, 1, 2, (7.4, 3.6)) as (_, grid):
        _histogram(grid[0][0], errors, mean, deviation)
        _quantiles(grid[0][1], errors, mean, deviation)


def _leaning(mean: float) -> str:
    return (
        f"{abs(mean):.2f} too {'high' if mean > 0 else 'low'} on average" if abs(mean) >= 0.005 else "right on average"
    )


def _histogram(axes: Any, errors: Any, mean: float, deviation: float) -> None:
    from scipy.stats import norm

    bins = int(np.clip(np.sqrt(len(errors)) * 1.5, 5, 40))
    _, edges, _ = axes.hist(errors, bins=bins, color=COLOURS[5], edgecolor="white", linewidth=0.4)
    if deviation > 0:
        x = np.linspace(edges[0], edges[-1], 200)
        axes.plot(x, len(errors) * (edges[1] - edges[0]) * norm.pdf(x, mean, deviation), color=COLOURS[1])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title(f"{len(errors):,} errors; line: normal")
    axes.set_xlabel("score - human score (both from 0 to 1)")
    axes.set_ylabel("pairs")


def _quantiles(axes: Any, errors: Any, mean: float, deviation: float) -> None:
    from scipy.stats import norm

    expected = norm.ppf((np.arange(len(errors)) + 0.5) / len(errors))
    found = (np.sort(errors) - mean) / (deviation or 1.0)
    axes.plot(expected, found, "o", color=COLOURS[0], markersize=3, rasterized=True)
    axes.plot(expected[[0, -1]], expected[[0, -1]], color=QUIET, linewidth=1, linestyle="--")
    excess = float((found**4).mean() - 3) if deviation > 0 else 0.0
    tails = "about as heavy as" if abs(excess) < 0.5 else "heavier than" if excess > 0 else "lighter than"
    axes.set_title(f"Q-Q: tails {tails} normal")
    axes.set_xlabel("normal quantile (standard deviations)")
    axes.set_ylabel("error quantile (standard deviations)")
