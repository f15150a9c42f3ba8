"""The figure of a learning curve: the score of every recipe by the number of examples, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoder2vec.report.figures import GREY, curve_style, legend_below, log_axis, panels


def draw_learning_curve(document: Mapping[str, Any], file: Path) -> None:
    """Draw the figure of `curve.json`.

    Args:
        document: What the file holds.
        file: Where to write the PNG; an SVG is written beside it.

    """
    part = document["shown"]
    with panels(file, document["sentence"], 1, 1, (7.2, 4.4), with_svg=True) as (figure, grid):
        axes = grid[0][0]
        for index, recipe in enumerate(document["recipes"]):
            points = [point for point in document["points"] if point["recipe"] == recipe and point[part]["seeds"]]
            _draw_recipe(axes, recipe, points, part, index)
        if (untrained := document["untrained"].get(part)) is not None:
            axes.axhline(untrained, color=GREY, linestyle="--", linewidth=1.2, label="untrained")
        log_axis(axes, "x")
        sizes = sorted({point["size"] for point in document["points"]})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(f"training {document['noun']}")
        axes.set_ylabel(f"Spearman on {part}; bars: 95 % over seeds")
        legend_below(figure, axes)


def _draw_recipe(axes: Any, recipe: str, points: Sequence[Mapping[str, Any]], part: str, index: int) -> None:
    """One curve; curves are shifted a little, so that their bars do not hide each other."""
    sizes = [point["size"] * 1.02**index for point in points]
    means = [point[part]["mean"] for point in points]
    bars = [point[part]["half_interval"] or 0.0 for point in points]
    axes.errorbar(sizes, means, yerr=bars, label=recipe, capsize=2, elinewidth=1, **curve_style(index))
