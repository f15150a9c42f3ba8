"""Why two texts are similar, as a picture: what each layer says, and what that adds to the similarity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoder2vec.analysis.drawing import COLOURS, MARKERS, groups, layer_axis, legend_below, panels, short
from decoder2vec.analysis.place import Place
from decoder2vec.explanation import Explanation

_APART = 0.16
"""Of a layer, between the stalks of two ways of reading it."""


def draw_explanation(explanation: Explanation, file: Path, texts: tuple[str, str] | None = None) -> None:
    """Write the picture to `file` (PNG): cosine and contribution over layers, one colour for each way of reading."""
    places = [Place(str(reading), reading.layer) for reading in explanation.readings]
    found = groups(places)
    title = f"Score {explanation.score:.2f} (similarity {explanation.similarity:.2f} before calibration)"
    if texts:
        title = f"{short(texts[0], 46)} / {short(texts[1], 46)}: {title[0].lower()}{title[1:]}"
    with panels(file, title, 1, 2, (8.0, 3.9)) as (figure, (row,)):
        for number, (group, members) in enumerate(found.items()):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            layers = [places[member].layer for member in members]
            cosines = [explanation.cosines[member] for member in members]
            row[0].plot(layers, cosines, color=colour, marker=marker, label=short(group))
            shifted = [layer + _APART * (number - (len(found) - 1) / 2) for layer in layers]
            _stems(row[1], shifted, [explanation.contributions[member] for member in members], colour, marker)
        row[0].axhline(1, color="black", linewidth=0.8)
        row[0].set_title("what each layer says (1 = the same)")
        row[0].set_ylabel("cosine of the two texts")
        row[1].set_title("what it contributes to the similarity")
        row[1].set_ylabel("contribution")
        for axes in row:
            layer_axis(axes, places)
        if len(found) > 1:
            legend_below(figure, row[0], columns=2)


def _stems(axes: Any, layers: list[float], values: list[float], colour: str, marker: str) -> None:
    """Dots on stalks from zero: a sign and a size."""
    axes.vlines(layers, 0, values, color=colour, linewidth=1.6, alpha=0.6)
    axes.plot(layers, values, linestyle="", color=colour, marker=marker)
    axes.axhline(0, color="black", linewidth=0.8)
