"""Figures that set runs side by side: the ladder, the paper's examples, the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.drawing import (
    COLOURS,
    MARKERS,
    QUIET,
    curve_name,
    legend_below,
    log_axis,
    panels,
    short,
)
from decoder2vec.analysis.report.record import Run
from decoder2vec.maths.metrics import METRICS

_COLOURED = 7
"""More encoders than these are drawn alike: nobody tells ten colours apart."""


def seed_scores(run: Run, part: str, metric: str, files: Sequence[str] = ()) -> list[float]:
    """For each seed the mean over the files of dev or test (or over some of them), where they have that metric."""
    found = []
    for seed in run.seeds:
        chosen = {name: scores for name, scores in getattr(seed, part).items() if not files or name in files}
        values = [scores[metric] for scores in chosen.values() if metric in scores]
        found += [float(np.mean(values))] if values else []
    return found


def part_files(runs: Sequence[Run], part: str) -> list[str]:
    """The different files the runs were scored on."""
    return list(dict.fromkeys(name for run in runs for seed in run.seeds for name in getattr(seed, part)))


def shared_files(runs: Sequence[Run], part: str) -> list[str]:
    """The files that all runs were scored on, since only those can be compared; if there are none, all files."""
    scored = [names for run in runs if (names := part_files([run], part))]
    every = part_files(runs, part)
    return [name for name in every if all(name in names for names in scored)] or every


def draw_ladder(runs: Sequence[Run], file: Path) -> None:
    """Scores of all runs on dev and test as bars, with every seed and the spread."""
    parts = [part for part in ("dev", "test") if part_files(runs, part)]
    size = (1.6 + 3.5 * len(parts), 1.5 + 0.5 * len(runs))
    with panels(file, _best_said(runs, parts), 1, len(parts), size, sharey=True) as (figure, grid):
        for axes, part in zip(grid[0], parts, strict=True):
            files = shared_files(runs, part)
            for number, metric in enumerate(METRICS):
                scores = [seed_scores(run, part, metric, files) for run in runs]
                _bars(axes, scores, metric, COLOURS[number], -0.2 + 0.4 * number)
            axes.set_title(f"{part}: {short(files[0], 30) if len(files) == 1 else f'mean over {len(files)} files'}")
            axes.set_xlabel("correlation x 100")
            axes.axvline(0, color="black", linewidth=0.8)
            axes.grid(visible=False, axis="y")
        grid[0][0].set_yticks(range(len(runs)), [short(run.name, 32) for run in runs])
        grid[0][0].set_ylim(len(runs) - 0.4, -0.6)
        legend_below(figure, grid[0][0])


def _best_said(runs: Sequence[Run], parts: Sequence[str]) -> str:
    """The best run by dev, where choices are made; its test score is only reported."""
    chosen = parts[0]
    means = {
        number: float(np.mean(found))
        for number, run in enumerate(runs)
        if (found := seed_scores(run, chosen, "spearman", shared_files(runs, chosen)))
    }
    if len(means) < 2:
        return f"Scores of {runs[0].name}" if len(runs) == 1 else "Scores of the runs"
    number = max(means, key=lambda number: np.nan_to_num(means[number], nan=-np.inf))
    best = runs[number]
    said = f"Scores of {len(runs)} runs. Highest Spearman on {chosen}: {best.name} ({means[number]:.1f}"
    test = seed_scores(best, "test", "spearman", shared_files(runs, "test")) if chosen == "dev" else []
    return f"{said}; on test {np.mean(test):.1f})" if test else f"{said})"


def _bars(axes: Any, rows: Sequence[list[float]], metric: str, colour: str, offset: float) -> None:
    label = metric.capitalize()
    for row, scores in enumerate(rows):
        if not scores:
            continue
        mean, place = float(np.mean(scores)), row + offset
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
        axes.barh(place, mean, 0.36, color=colour, alpha=0.55, label=label)
        label = "_"  # once in the legend is enough
        if len(scores) > 1:
            axes.errorbar(mean, place, xerr=spread, color=colour, linewidth=1.4, capsize=2.5, zorder=4)
        dots = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 0.7, "markersize": 2.8}
        axes.plot(scores, [place] * len(scores), "o", zorder=5, **dots)
        words = f"{mean:.1f} ± {spread:.1f}" if len(scores) > 1 else f"{mean:.1f}"
        axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center", size=7, color=colour)


def draw_parameters(runs: Sequence[Run], file: Path) -> None:
    """How many numbers each run trained, as a share of the frozen model's."""
    shown = [(run, 100 * run.trained / run.frozen) for run in runs if run.trained is not None and run.frozen]
    values = [max(share, 1e-9) for _, share in shown]
    with panels(file, "Numbers trained, in % of the frozen model's", 1, 1, (7.2, 1.1 + 0.3 * len(shown))) as (_, grid):
        axes = grid[0][0]
        axes.plot(values, range(len(shown)), "o", color=COLOURS[0], markersize=7)
        for row, (run, share) in enumerate(shown):
            words = f"{run.trained:,} = {share:,.1f} %" if share >= 1 else f"{run.trained:,} = {share:.2g} %"
            axes.text(1.01, row, words, transform=axes.get_yaxis_transform(), va="center", size=8)
        if max(values) > 30 * min(values):
            log_axis(axes, "x")
        else:
            axes.set_xlim(0, 1.1 * max(values))
        axes.set_yticks(range(len(shown)), [short(run.name, 32) for run, _ in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("% of the frozen model's parameters" + (" (log axis)" if axes.get_xscale() == "log" else ""))


def draw_examples(runs: Sequence[Run], file: Path) -> None:
    """The example pairs, one row each: human score, the paper's, and that of every encoder."""
    shown = [run for run in runs if run.examples]
    pairs = list(dict.fromkeys((pair.left, pair.right) for run in shown for pair in run.examples))
    known = {(pair.left, pair.right): pair for run in shown for pair in run.examples}
    title = f"The paper's examples by {len(shown)} encoder{'s' * (len(shown) > 1)}"
    with panels(file, title, 1, 1, (8.4, 1.6 + 0.5 * len(pairs))) as (figure, grid):
        axes = grid[0][0]
        for row, pair in enumerate(pairs):
            label = "_" if row else None
            truth, paper = known[pair].truth, known[pair].paper
            axes.plot(truth, row, "D", color="black", markersize=8, zorder=4, label=label or "people")
            if paper is not None:
                axes.plot(paper, row, "x", color=QUIET, markersize=8, mew=2.2, zorder=3, label=label or "the paper")
        _dots(axes, shown, pairs)
        names = [f"{short(left, 60)}\n{short(right, 60)}" for left, right in pairs]
        axes.set_yticks(range(len(pairs)), names, fontsize=7.5)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("score (0 = unrelated, 1 = the same)")
        legend_below(figure, axes, columns=5)


def _dots(axes: Any, runs: Sequence[Run], pairs: Sequence[tuple[str, str]]) -> None:
    """The scores of the encoders, a little apart from each other so that equal ones do not hide one another."""
    for number, run in enumerate(runs):
        scores = {(pair.left, pair.right): pair.score for pair in run.examples}
        rows = [row for row, pair in enumerate(pairs) if pair in scores]
        shift = 0.5 * (number / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0.0
        look = {"color": COLOURS[0], "marker": "o", "alpha": 0.5, "label": "_" if number else "an encoder"}
        if len(runs) < _COLOURED:
            look = {"color": COLOURS[number], "marker": MARKERS[number], "label": curve_name(short(run.name, 28))}
        axes.plot([scores[pairs[row]] for row in rows], [row + shift for row in rows], linestyle="", **look)
