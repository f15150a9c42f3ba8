"""The intrinsic dimension over the layers, one curve for each encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from decoder2vec.analysis.comparison.dimension_file import Dimensions
from decoder2vec.analysis.drawing import COLOURS, MARKERS, curve_name, labels, legend_below, panels, whole_numbers


def draw_dimensions(found: Sequence[Dimensions], file: Path) -> None:
    """TwoNN with its interval on the left, the maximum likelihood estimate on the right."""
    kinds = [("twonn", "TwoNN, with 95 % intervals")]
    if any(math.isfinite(layer.mle) for one in found for layer in one.layers):
        kinds.append(("mle", "maximum likelihood"))
    size = (1.4 + 3.9 * len(kinds), 3.6 + 0.17 * len(found))
    with panels(file, "Intrinsic dimension by layer", 1, len(kinds), size, True, sharey=True) as (figure, grid):
        for axes, (field, title) in zip(grid[0], kinds, strict=True):
            for number, (one, name) in enumerate(zip(found, labels([one.name for one in found], 40), strict=True)):
                layers = [layer.layer for layer in one.layers]
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
                values = [getattr(layer, field) for layer in one.layers]
                axes.plot(layers, values, color=colour, marker=marker, label=curve_name(name))
                if field == "twonn":
                    low, high = [layer.low for layer in one.layers], [layer.high for layer in one.layers]
                    axes.fill_between(layers, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.set_title(title)
            axes.set_xlabel("layer (0 = embeddings)")
            whole_numbers(axes.xaxis)
        grid[0][0].set_ylabel("dimension")
        legend_below(figure, grid[0][0], columns=2)
