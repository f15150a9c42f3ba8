"""Intrinsic dimension as a picture: curves of one or several encoders over their layers, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.dimension_comparison import label
from decoder2vec.analysis.drawing import (
    COLOURS,
    MARKERS,
    QUIET,
    curve_name,
    legend_below,
    panels,
    short,
    whole_numbers,
)

_PARTS = (("--", COLOURS[1], "a half of them"), (":", COLOURS[2], "a quarter"))


def draw_dimension(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """TwoNN and maximum likelihood by layer; then the parts of one encoder, or the areas of several."""
    counts = sorted({curve["texts"]["count"] for curve in curves})
    texts = " and ".join(f"{count:,}" for count in counts)
    name = label(curves[0]) if len(curves) == 1 else f"{len(curves)} encoders"
    title = f"Intrinsic dimension of {name} on {texts} texts"
    with panels(file, title, 1, 3, (11.4, 4.0)) as (figure, (row,)):
        for number, curve in enumerate(curves):
            _curve(row[0], curve, "twonn", number)
            _curve(row[1], curve, "mle", number)
        for axes, words in ((row[0], "TwoNN"), (row[1], f"MLE, {curves[0]['plan']['neighbours']} neighbours")):
            axes.set_title(f"{words}, with 95 % intervals")
            axes.set_ylabel("dimension")
            _layers(axes)
        if len(curves) == 1:
            _parts(row[2], curves[0])
        else:
            _areas(row[2], curves)
            legend_below(figure, row[0], columns=3)


def drawn(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of the rows that make a curve: all layers, the last behind the final norm."""
    last = max(row["layer"] for row in rows)
    return [number for number, row in enumerate(rows) if row["normed"] == (row["layer"] == last)]


def points_of(curve: dict[str, Any], name: str) -> tuple[list[int], list[float]]:
    """Layers and values of a curve; what is undefined is left open."""
    rows = [curve["layers"][number] for number in drawn(curve["layers"])]
    return [row["layer"] for row in rows], [math.nan if row[name] is None else row[name] for row in rows]


def _curve(axes: Any, curve: dict[str, Any], name: str, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    layers, values = points_of(curve, name)
    rows = [curve["layers"][number] for number in drawn(curve["layers"])]
    bounds = [row[f"{name}_95"] or (math.nan, math.nan) for row in rows]
    low, high = np.array(bounds, float).T
    axes.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(layers, values, color=colour, marker=marker, label=curve_name(short(label(curve), 40)))


def _parts(axes: Any, curve: dict[str, Any]) -> None:
    """The same curve from fewer points: where it falls with them, it has not come to rest."""
    layers, values = points_of(curve, "twonn")
    axes.plot(layers, values, color=COLOURS[0], label="all points")
    rows = [curve["layers"][number] for number in drawn(curve["layers"])]
    for number in range(max(len(row["subsamples"]) for row in rows)):
        parts = [row["subsamples"][number] if number < len(row["subsamples"]) else {} for row in rows]
        mean, std = (np.array([part.get(name) or math.nan for part in parts], float) for name in ("mean", "std"))
        style, colour, words = _PARTS[number]
        axes.plot(layers, mean, color=colour, linestyle=style, label=words)
        axes.fill_between(layers, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axes.set_title("TwoNN of random parts, ± 1 sd")
    axes.set_ylabel("dimension")
    _layers(axes)
    axes.legend()


def _areas(axes: Any, curves: Sequence[dict[str, Any]]) -> None:
    for number, curve in enumerate(curves):
        value, bounds = curve["area"]["unit"], curve["area"]["unit_95"]
        if value is None:
            continue
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        if bounds:
            axes.plot(bounds, [number, number], color=colour, linewidth=3, alpha=0.4)
        axes.plot([value], [number], color=colour, marker=marker, markersize=7)
    axes.set_yticks(range(len(curves)), [short(label(curve), 22) for curve in curves])
    axes.set_ylim(len(curves) - 0.5, -0.5)
    axes.set_title("area under TwoNN, depth = 1")
    axes.set_xlabel("mean dimension over depth")
    axes.tick_params(axis="y", labelcolor=QUIET)


def _layers(axes: Any) -> None:
    axes.set_xlabel("layer (0 = embeddings; the last is normed)")
    axes.set_ylim(bottom=0)
    whole_numbers(axes.xaxis)
