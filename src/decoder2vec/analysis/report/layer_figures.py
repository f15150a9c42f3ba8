"""Figures of one run over the layers: correlations, the loss of the autoencoders, what each layer is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.drawing import (
    COLOURS,
    MARKERS,
    QUIET,
    groups,
    layer_axis,
    legend_below,
    log_axis,
    panels,
    short,
)
from decoder2vec.analysis.place import Place
from decoder2vec.analysis.report.record import Layers, Run

_CURVES = (
    ("raw", "pearson", "raw cosine, Pearson", COLOURS[1], "-", "s"),
    ("raw", "spearman", "raw cosine, Spearman", COLOURS[1], ":", "s"),
    ("codes", "pearson", "trained codes, Pearson", COLOURS[0], "-", "o"),
    ("codes", "spearman", "trained codes, Spearman", COLOURS[0], ":", "o"),
)


def draw_correlations(run: Run, file: Path) -> None:
    """How well the cosine of each layer alone follows human scores, raw and trained."""
    layers = _layers_of(run)
    found = groups(run.readings)
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    size = (max(7.2, 3.3 * columns), 1.3 + 2.7 * rows)
    with panels(file, _correlation_title(run, layers), rows, columns, size, sharey=True, sharex=True) as (figure, grid):
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, (group, numbers) in zip(grid.flat, found.items(), strict=False):
            for kind, metric, name, colour, style, marker in _CURVES:
                if values := getattr(layers, kind).get(metric):
                    x, y = [run.readings[n].layer for n in numbers], [values[n] for n in numbers]
                    axes.plot(x, y, color=colour, linestyle=style, marker=marker, label=name)
            axes.set_title(short(group, 46))
            layer_axis(axes, run.readings)
            axes.tick_params(labelbottom=True)
        for row in grid:
            row[0].set_ylabel(f"correlation on {short(layers.data, 20)} x 100")
        legend_below(figure, grid[0][0], columns=2)


def _correlation_title(run: Run, layers: Layers) -> str:
    said = []
    for kind, words in (("raw", "raw cosine"), ("codes", "trained codes")):
        if values := getattr(layers, kind).get("pearson"):
            best = int(np.nanargmax(np.nan_to_num(values, nan=-np.inf)))
            said.append(f"{words} best at layer {run.readings[best].layer} (Pearson {values[best]:.1f})")
    return f"{run.name}: {', '.join(said)}"


def draw_autoencoders(run: Run, file: Path) -> None:
    """What the autoencoders lose in each layer, in the latents' own units and as a share of their variance."""
    seeds = [seed for seed in run.seeds if len(seed.error) == len(run.pretrained)]
    error = np.array([seed.error for seed in seeds])
    share = np.array([seed.unexplained for seed in seeds if seed.unexplained])
    seeds_said = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    title = f"{run.name}: what the autoencoders lose in each layer{seeds_said}"
    columns = 2 if share.size else 1
    with panels(file, title, 1, columns, (3.7 * columns + 0.2, 3.7)) as (figure, grid):
        raw = grid[0][0]
        _curves(raw, run.pretrained, np.where(error > 0, error, np.nan))
        log_axis(raw, "y")
        raw.set_title("raw error")
        raw.set_ylabel("mean squared error (log axis)")
        if share.size:
            part = grid[0][1]
            _curves(part, run.pretrained, share)
            part.axhline(1, color=QUIET, linewidth=1, linestyle="--")
            part.set_ylim(0, 1.1 * float(share[np.isfinite(share)].max(initial=1.0)))
            part.set_title("not explained")
            part.set_ylabel("share of variance (1 - R²)")
        if len(groups(run.pretrained)) > 1:
            legend_below(figure, raw, columns=2)


def draw_worth(run: Run, file: Path) -> None:
    """What each layer's codes score alone, what is lost without them, and their weights in the sum."""
    layers = _layers_of(run)
    parts = worth_parts(run)
    about = f"{run.name}: what each layer is worth on {layers.data}"
    if layers.everything is not None:
        about += f"; all together: Pearson {layers.everything:.1f}"
    with panels(file, about, 1, len(parts), (max(4.6, 3.2 * len(parts)), 3.6)) as (figure, grid):
        for axes, (title, label, values, line) in zip(grid[0], parts, strict=True):
            _curves(axes, run.readings, np.array([values]))
            if line is not None:
                axes.axhline(line, color=QUIET, linewidth=1, linestyle="--")
            axes.set_title(title)
            axes.set_ylabel(label)
        if len(groups(run.readings)) > 1:
            legend_below(figure, grid[0][0], columns=2)


def worth_parts(run: Run) -> list[tuple[str, str, Sequence[float], float | None]]:
    """Title, axis label, values and dashed line of each panel there are numbers for."""
    layers = run.layers
    if layers is None or len(run.readings) < 2:
        return []
    found: list[tuple[str, str, Sequence[float], float | None]] = []
    if codes := layers.codes.get("pearson"):
        found.append(("codes alone; dashed: all layers", "Pearson x 100", codes, layers.everything))
    if layers.without and layers.everything is not None:
        lost = [layers.everything - value for value in layers.without]
        found.append(("lost without the layer", "points of Pearson", lost, 0.0))
    if layers.weights and run.head == "sum":
        found.append(("weight; dashed: all equal", "weight in the sum", layers.weights, 1 / len(layers.weights)))
    return found


def _layers_of(run: Run) -> Layers:
    assert run.layers is not None
    return run.layers


def _curves(axes: Any, places: Sequence[Place], values: Any) -> None:
    """One curve for each group: the mean over rows of [seed, reading], with a thin line for each row."""
    for number, (group, members) in enumerate(groups(places).items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        layers = [places[member].layer for member in members]
        if len(values) > 1:
            for row in values:
                axes.plot(layers, row[members], color=colour, linewidth=0.7, alpha=0.45)
        mean = values[:, members].mean(axis=0)
        axes.plot(layers, mean, color=colour, marker=marker, label=short(group))
    layer_axis(axes, places)
