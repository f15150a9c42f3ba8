"""The shape of layers as a picture: four curves over layers, and which layers are alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.dimension_plot import drawn, points_of
from decoder2vec.analysis.drawing import COLOURS, MARKERS, curve_name, legend_below, panels, short, whole_numbers

_PANELS = (
    ("anisotropy", "mean cosine of two texts", "anisotropy"),
    ("effective_rank", "directions in use", "effective rank"),
    ("uniformity", "log mean exp(-2 d²): lower is more even", "uniformity"),
    ("alignment", "mean d² of pairs: lower is closer", "alignment"),
)


def draw_geometry(shapes: Sequence[dict[str, Any]], file: Path) -> None:
    """One panel for each measure with the curves of all encoders, then one map of layers for each encoder."""
    shown = [panel for panel in _PANELS if any(row[panel[0]] is not None for each in shapes for row in each["layers"])]
    count = len(shown) + len(shapes)
    rows = -(-count // 4)
    columns = -(-count // rows)
    name = shapes[0]["encoder"] if len(shapes) == 1 else f"{len(shapes)} encoders"
    title = f"Geometry of {name} on {shapes[0]['texts']['count']:,} texts"
    with panels(file, title, rows, columns, (3.5 * columns, 1.0 + 3.1 * rows)) as (figure, grid):
        for axes in grid.flat[count:]:
            axes.set_axis_off()
        for axes, (field, label, words) in zip(grid.flat, shown, strict=False):
            for number, shape in enumerate(shapes):
                _curve(axes, shape, field, number)
            axes.set_title(words)
            axes.set_ylabel(label)
            axes.set_xlabel("layer (the last is normed)")
            whole_numbers(axes.xaxis)
        for axes, shape in zip(grid.flat[len(shown) :], shapes, strict=False):
            image = _map(axes, shape, one=len(shapes) == 1)
            figure.colorbar(image, ax=axes, shrink=0.8, label="linear CKA")
        if len(shapes) > 1:
            legend_below(figure, grid[0][0], columns=3)


def _curve(axes: Any, shape: dict[str, Any], field: str, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    layers, values = points_of(shape, field)
    axes.plot(layers, values, color=colour, marker=marker, label=curve_name(short(shape["encoder"], 40)))


def _map(axes: Any, shape: dict[str, Any], *, one: bool) -> Any:
    """Layers against layers; what is undefined stays blank."""
    shown = drawn(shape["layers"])
    values = np.array(shape["cka"], dtype=float)[np.ix_(shown, shown)]
    image = axes.imshow(values, origin="lower", vmin=0, vmax=1, cmap="viridis")
    axes.grid(visible=False)
    axes.set_title("which layers are alike" if one else short(shape["encoder"], 30))
    axes.set_xlabel("layer")
    axes.set_ylabel("layer")
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    return image
