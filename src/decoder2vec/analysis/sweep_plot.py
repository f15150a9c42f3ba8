"""The sweep as a picture: one panel per prompt and direction, one curve per pooling, quality over layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoder2vec.analysis.sweep_rows import SweepRow, curve

if TYPE_CHECKING:
    from decoder2vec.analysis.layer_sweep import Sweep

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
            points = curve(rows, pooling=pooling, head=head)
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
