"""The sweep as a picture: one panel per prompt and direction, one curve per pooling, quality over layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoder2vec.analysis.sweep import SweepRow, layer_curve
from decoder2vec.report.figures import (
    COLOURS,
    MARKERS,
    curve_name,
    labels,
    legend_below,
    panels,
    short,
    whole_numbers,
)
from decoder2vec.report.result_files import SavedSweep, ways

if TYPE_CHECKING:
    from decoder2vec.analysis.sweep import Sweep

_COLOURS = {
    "lasttoken": "#d1495b",
    "mean": "#00798c",
    "weightedmean": "#edae49",
    "max": "#66a182",
    "cls": "#8d8d8d",
    "sum": "#5c6bc0",
}
_PAST = {"standardise": "standardised", "whiten": "whitened", "remove_top": "top removed"}
_STYLES = {"none": (0, (2, 2)), "standardise": "-", "whiten": "-.", "remove_top": ":"}


def draw_sweep(sweep: Sweep, file: Path, test: dict[str, Any] | None = None) -> None:
    """Write the picture to `file` (PNG)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    attentions = [name for name in sweep.plan.attentions if any(row.attention == name for row in sweep.rows)]
    templates = [name for name in sweep.plan.templates if any(row.template == name for row in sweep.rows)]
    size = (1.2 + 3.1 * len(templates), 1.6 + 2.6 * len(attentions))
    figure, grid = pyplot.subplots(
        len(attentions), len(templates), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for row, attention in enumerate(attentions):
        for column, template in enumerate(templates):
            _panel(grid[row][column], sweep, attention, template)
        grid[row][0].set_ylabel(f"{attention}\nSpearman x 100")
    for axes in grid[-1]:
        axes.set_xlabel("layer (0 = embeddings)")
    lowest = min(row.spearman for row in sweep.rows)
    grid[0][0].set_ylim(max(lowest, -10.0) if lowest < 0 else 0.0, sweep.winner.spearman + 4)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=5 if len(labels) > 6 else len(labels),
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(_title(sweep, test), fontsize=11)
    figure.savefig(file, dpi=130, format="png")
    pyplot.close(figure)


def _panel(axes: Any, sweep: Sweep, attention: str, template: str) -> None:
    rows = [row for row in sweep.rows if row.attention == attention and row.template == template]
    for pooling in _drawn(sweep.plan.poolings):
        for head in sweep.plan.heads:
            points = layer_curve(rows, pooling=pooling, head=head)
            name = pooling if head == "none" else f"{pooling}, {_PAST.get(head, head)}"
            axes.plot(
                list(points),
                list(points.values()),
                color=_COLOURS.get(pooling, "black"),
                linestyle=_STYLES.get(head, "-"),
                linewidth=1.0 if head == "none" else 1.7,
                label=name,
            )
    axes.set_title(template, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    best = sweep.winner
    if best in rows:
        axes.plot(best.layer, best.spearman, marker="*", markersize=15, color="black", zorder=5)
        axes.annotate(
            f"{best.spearman:.1f}", (best.layer, best.spearman), (-9, 2), textcoords="offset points", ha="right"
        )


def _drawn(poolings: Sequence[str]) -> list[str]:
    """A sum points where the mean does, so it gets no curve of its own beside it."""
    return [name for name in poolings if name != "sum" or "mean" not in poolings]


def describe(row: SweepRow) -> str:
    """A row in words."""
    parts = [row.template, row.attention, f"layer {row.layer}{' normed' if row.normed else ''}", row.pooling]
    return ", ".join(parts + ([] if row.head == "none" else [_PAST.get(row.head, row.head)]))


def _title(sweep: Sweep, test: dict[str, Any] | None) -> str:
    end = f"; on {test['task']}: {test['spearman']:.1f}" if test else ""
    return f"{sweep.model} on {sweep.data.name}. Best: {describe(sweep.winner)} ({sweep.winner.spearman:.1f}{end})"


_LINES = {"causal": "-", "bidirectional": (0, (4, 2))}


def draw_heat_map(sweep: SavedSweep, file: Path) -> None:
    """Spearman of every reading: layers across, poolings and heads down, a panel for each prompt and direction."""
    templates, attentions = sweep.different("template"), sweep.different("attention")
    own, layers = ways(sweep.rows), sorted(sweep.different("layer"))
    size = (2.6 + 2.3 * len(templates), 1.3 + len(attentions) * (0.6 + 0.19 * len(own)))
    known = [row.spearman for row in sweep.rows if math.isfinite(row.spearman)]
    limits = (max(0.0, min(known)), max(known)) if known else (0.0, 1.0)
    title = f"{short(sweep.model, 60)} on {short(sweep.data, 30)}: every reading"
    with panels(file, title, len(attentions), len(templates), size, True, sharex=True, sharey=True) as (figure, grid):
        for line, attention in zip(grid, attentions, strict=True):
            for axes, template in zip(line, templates, strict=True):
                rows = [row for row in sweep.rows if (row.attention, row.template) == (attention, template)]
                heat = axes.imshow(
                    _table(rows, own, layers), aspect="auto", interpolation="none", vmin=limits[0], vmax=limits[1]
                )
                axes.set_title(f"{short(template, 26)}, {attention}", fontsize=8)
                axes.grid(visible=False)
                axes.tick_params(axis="y", labelsize=7)
                _star(axes, sweep.rows[0], rows, own, layers)
        ticks = sorted({0, len(layers) // 2, len(layers) - 1})
        grid[0][0].set_xticks(ticks, [str(layers[tick]) for tick in ticks])
        grid[0][0].set_yticks(range(len(own)), [p if h == "none" else f"{p}, {h}" for p, h in own])
        for axes in grid[-1]:
            axes.set_xlabel("layer")
        figure.colorbar(heat, ax=list(grid.flat), label="Spearman x 100", shrink=0.8)


def _table(rows: Sequence[SweepRow], own: Sequence[tuple[str, str]], layers: Sequence[int]) -> Any:
    cells = np.full((len(own), len(layers)), np.nan)
    for row in rows:
        if not row.normed and (row.pooling, row.head) in own:
            cells[own.index((row.pooling, row.head)), layers.index(row.layer)] = row.spearman
    return cells


def _star(
    axes: Any, best: SweepRow, rows: Sequence[SweepRow], own: Sequence[tuple[str, str]], layers: Sequence[int]
) -> None:
    if best in rows and (best.pooling, best.head) in own:
        place = layers.index(best.layer), own.index((best.pooling, best.head))
        axes.plot(*place, "*", color="white", markeredgecolor="black", markersize=11, clip_on=False)


def draw_layers(sweep: SavedSweep, file: Path) -> None:
    """Spearman over the layers for every prompt and direction, each by its best pooling and head."""
    best = sweep.rows[0]
    title = (
        f"{short(sweep.model, 60)} on {short(sweep.data, 30)}. Best: {short(describe(best), 90)}: {best.spearman:.1f}"
    )
    with panels(file, title, 1, 1, (8.6, 4.4), True) as (figure, grid):
        axes = grid[0][0]
        for number, template in enumerate(sweep.different("template")):
            for attention in sweep.different("attention"):
                rows = [row for row in sweep.rows if (row.attention, row.template) == (attention, template)]
                if not rows:
                    continue
                points = layer_curve(rows, pooling=rows[0].pooling, head=rows[0].head)
                own = describe(rows[0]).split(", ", 3)[-1]
                axes.plot(
                    list(points),
                    list(points.values()),
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=_LINES.get(attention, ":"),
                    label=curve_name(f"{short(template, 30)}, {attention} ({own})"),
                )
        axes.plot(best.layer, best.spearman, "*", color="black", markersize=13, zorder=5)
        axes.set_xlabel("layer (0 = embeddings)")
        axes.set_ylabel("Spearman x 100")
        whole_numbers(axes.xaxis)
        legend_below(figure, axes, columns=2)


def draw_depths(sweeps: Sequence[SavedSweep], file: Path) -> None:
    """The best reading of every model over its layers, as a share of its depth."""
    with panels(file, "The best reading of each model, over its depth", 1, 1, (8.6, 4.2), True) as (figure, grid):
        for number, (sweep, name) in enumerate(zip(sweeps, labels([s.name for s in sweeps], 40), strict=True)):
            best, top = sweep.rows[0], max(1, *sweep.different("layer"))
            rows = [row for row in sweep.rows if (row.attention, row.template) == (best.attention, best.template)]
            points = layer_curve(rows, pooling=best.pooling, head=best.head)
            grid[0][0].plot(
                [100 * layer / top for layer in points],
                list(points.values()),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                label=curve_name(f"{name}: {best.spearman:.1f} on {short(sweep.data, 20)}"),
            )
        grid[0][0].set_xlabel("depth in %")
        grid[0][0].set_ylabel("Spearman x 100")
        legend_below(figure, grid[0][0], columns=2)
