"""Figures of sweeps: Spearman of every reading over the layers, as curves, as a heat map, and for several models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.sweep import SweepRow, layer_curve
from decoder2vec.report.figures import (
    COLOURS,
    GREY,
    colour,
    curve_style,
    integer_ticks,
    legend_below,
    legend_label,
    panels,
    shorten,
    unique_labels,
)
from decoder2vec.report.result_files import SavedSweep

if TYPE_CHECKING:
    from decoder2vec.analysis.sweep import Sweep

_POOLING_COLOURS = {
    "lasttoken": COLOURS[1],
    "mean": COLOURS[0],
    "weightedmean": COLOURS[4],
    "max": COLOURS[2],
    "cls": GREY,
    "sum": COLOURS[3],
}
_HEAD_LABELS = {"standardise": "standardised", "whiten": "whitened", "remove_top": "top removed", "rotate": "rotated"}
_HEAD_LINES = {"none": (0, (2, 2)), "standardise": "-", "whiten": "-.", "remove_top": ":", "rotate": "--"}
_ATTENTION_LINES = {"causal": "-", "bidirectional": (0, (4, 2))}


def describe_sweep_row(row: SweepRow) -> str:
    """The reading of a row in words: template, attention, layer, pooling and head."""
    parts = [row.template, row.attention, f"layer {row.layer}{' normed' if row.normed else ''}", row.pooling]
    return ", ".join(parts + ([] if row.head == "none" else [_HEAD_LABELS.get(row.head, row.head)]))


def draw_sweep(sweep: Sweep, file: Path, test: dict[str, Any] | None = None) -> None:
    """Draw Spearman over the layers: one panel for each template and attention, one curve for each pooling and head.

    Args:
        sweep: A finished sweep.
        file: Where to write the PNG.
        test: The winner's result on test pairs (`task`, `spearman`), for the title.
    """
    attentions = [name for name in sweep.plan.attentions if any(row.attention == name for row in sweep.rows)]
    templates = [name for name in sweep.plan.templates if any(row.template == name for row in sweep.rows)]
    on_test = f"; on {test['task']}: {test['spearman']:.1f}" if test else ""
    winner = f"{describe_sweep_row(sweep.winner)} ({sweep.winner.spearman:.1f}{on_test})"
    title = f"{sweep.model} on {sweep.data.name}. Best: {winner}"
    size = (1.2 + 3.1 * len(templates), 1.6 + 2.6 * len(attentions))
    with panels(file, title, len(attentions), len(templates), size, sharex=True, sharey=True) as (figure, grid):
        for row_of_panels, attention in zip(grid, attentions, strict=True):
            for axes, template in zip(row_of_panels, templates, strict=True):
                _draw_sweep_panel(axes, sweep, attention, template)
            row_of_panels[0].set_ylabel(f"{attention}\nSpearman x 100")
        for axes in grid[-1]:
            axes.set_xlabel("layer (0 = embeddings)")
            integer_ticks(axes.xaxis)
        lowest = min(row.spearman for row in sweep.rows)
        grid[0][0].set_ylim(max(lowest, -10.0) if lowest < 0 else 0.0, sweep.winner.spearman + 4)
        legend_below(figure, grid[0][0], columns=5)


def _draw_sweep_panel(axes: Any, sweep: Sweep, attention: str, template: str) -> None:
    rows = [row for row in sweep.rows if row.attention == attention and row.template == template]
    for pooling in sweep.plan.poolings:
        if pooling == "sum" and "mean" in sweep.plan.poolings:
            continue  # it has the direction of the mean, so its curve would be the same
        for head in sweep.plan.heads:
            points = layer_curve(rows, pooling=pooling, head=head)
            axes.plot(
                list(points),
                list(points.values()),
                color=_POOLING_COLOURS.get(pooling, "black"),
                linestyle=_HEAD_LINES.get(head, "-"),
                linewidth=1.0 if head == "none" else 1.7,
                label=pooling if head == "none" else f"{pooling}, {_HEAD_LABELS.get(head, head)}",
            )
    axes.set_title(shorten(template, 46))
    best = sweep.winner
    if best in rows:
        axes.plot(best.layer, best.spearman, marker="*", markersize=15, color="black", zorder=5)
        point = (best.layer, best.spearman)
        axes.annotate(f"{best.spearman:.1f}", point, (-9, 2), textcoords="offset points", ha="right")


def draw_heat_map(sweep: SavedSweep, file: Path) -> None:
    """Draw Spearman of every reading: layers by poolings and heads, with a panel for each template and attention."""
    templates, attentions = sweep.distinct("template"), sweep.distinct("attention")
    columns, layers = _poolings_and_heads(sweep.rows), sorted(sweep.distinct("layer"))
    size = (2.6 + 2.3 * len(templates), 1.3 + len(attentions) * (0.6 + 0.19 * len(columns)))
    finite = [row.spearman for row in sweep.rows if math.isfinite(row.spearman)]
    low, high = (max(0.0, min(finite)), max(finite)) if finite else (0.0, 1.0)
    title = f"{shorten(sweep.model, 60)} on {shorten(sweep.data, 30)}: every reading"
    n_panels = (len(attentions), len(templates))
    with panels(file, title, *n_panels, size, with_svg=True, sharex=True, sharey=True) as (figure, grid):
        for row_of_panels, attention in zip(grid, attentions, strict=True):
            for axes, template in zip(row_of_panels, templates, strict=True):
                rows = [row for row in sweep.rows if (row.attention, row.template) == (attention, template)]
                cells = _heat_map_cells(rows, columns, layers)
                image = axes.imshow(cells, aspect="auto", interpolation="none", vmin=low, vmax=high)
                axes.set_title(f"{shorten(template, 26)}, {attention}", fontsize=8)
                axes.grid(visible=False)
                axes.tick_params(axis="y", labelsize=7)
                best = sweep.rows[0]
                if best in rows and (best.pooling, best.head) in columns:
                    position = layers.index(best.layer), columns.index((best.pooling, best.head))
                    axes.plot(*position, "*", color="white", markeredgecolor="black", markersize=11, clip_on=False)
        ticks = sorted({0, len(layers) // 2, len(layers) - 1})
        grid[0][0].set_xticks(ticks, [str(layers[tick]) for tick in ticks])
        names = [pooling if head == "none" else f"{pooling}, {head}" for pooling, head in columns]
        grid[0][0].set_yticks(range(len(columns)), names)
        for axes in grid[-1]:
            axes.set_xlabel("layer")
        figure.colorbar(image, ax=list(grid.flat), label="Spearman x 100", shrink=0.8)


def _poolings_and_heads(rows: Sequence[SweepRow]) -> list[tuple[str, str]]:
    """The distinct poolings and heads, best first; without the sum if there is a mean, which has the same direction."""
    distinct = list(dict.fromkeys((row.pooling, row.head) for row in rows))
    poolings = {pooling for pooling, _ in distinct}
    return [(pooling, head) for pooling, head in distinct if pooling != "sum" or "mean" not in poolings]


def _heat_map_cells(
    rows: Sequence[SweepRow], columns: Sequence[tuple[str, str]], layers: Sequence[int]
) -> NDArray[np.float64]:
    cells = np.full((len(columns), len(layers)), np.nan)
    for row in rows:
        if not row.normed and (row.pooling, row.head) in columns:
            cells[columns.index((row.pooling, row.head)), layers.index(row.layer)] = row.spearman
    return cells


def draw_layers(sweep: SavedSweep, file: Path) -> None:
    """Draw Spearman over the layers for every template and attention, each with its best pooling and head."""
    best = sweep.rows[0]
    winner = f"{shorten(describe_sweep_row(best), 90)}: {best.spearman:.1f}"
    title = f"{shorten(sweep.model, 60)} on {shorten(sweep.data, 30)}. Best: {winner}"
    with panels(file, title, 1, 1, (8.6, 4.4), with_svg=True) as (figure, grid):
        axes = grid[0][0]
        for index, template in enumerate(sweep.distinct("template")):
            for attention in sweep.distinct("attention"):
                rows = [row for row in sweep.rows if (row.attention, row.template) == (attention, template)]
                if not rows:
                    continue
                points = layer_curve(rows, pooling=rows[0].pooling, head=rows[0].head)
                pooling = describe_sweep_row(rows[0]).split(", ", 3)[-1]
                axes.plot(
                    list(points),
                    list(points.values()),
                    color=colour(index),
                    linestyle=_ATTENTION_LINES.get(attention, ":"),
                    label=legend_label(f"{shorten(template, 30)}, {attention} ({pooling})"),
                )
        axes.plot(best.layer, best.spearman, "*", color="black", markersize=13, zorder=5)
        axes.set_xlabel("layer (0 = embeddings)")
        axes.set_ylabel("Spearman x 100")
        integer_ticks(axes.xaxis)
        legend_below(figure, axes, columns=2)


def draw_depths(sweeps: Sequence[SavedSweep], file: Path) -> None:
    """Draw the best reading of every model over its layers, as a share of its depth."""
    title = "The best reading of each model, over its depth"
    with panels(file, title, 1, 1, (8.6, 4.2), with_svg=True) as (figure, grid):
        axes = grid[0][0]
        for index, (sweep, name) in enumerate(zip(sweeps, unique_labels([s.name for s in sweeps], 40), strict=True)):
            best, depth = sweep.rows[0], max(1, *sweep.distinct("layer"))
            rows = [row for row in sweep.rows if (row.attention, row.template) == (best.attention, best.template)]
            points = layer_curve(rows, pooling=best.pooling, head=best.head)
            label = legend_label(f"{name}: {best.spearman:.1f} on {shorten(sweep.data, 20)}")
            shares = [100 * layer / depth for layer in points]
            axes.plot(shares, list(points.values()), **curve_style(index), label=label)
        axes.set_xlabel("depth in %")
        axes.set_ylabel("Spearman x 100")
        legend_below(figure, axes, columns=2)
