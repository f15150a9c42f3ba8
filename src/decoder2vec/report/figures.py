"""Where a vector is read, in words: what the curves of a figure are grouped by."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder2vec.storage import atomic_file

_READING = re.compile(r"layer -?\d+(?P<normed> normed)?, (?P<rest>.*)", re.S)


@dataclass(frozen=True)
class Place:
    """Where a vector is read: the reading in words, and its layer."""

    label: str
    layer: int

    @property
    def group(self) -> str:
        """Everything but the layer: readings of one group make one curve."""
        if not (found := _READING.fullmatch(self.label)):
            return "reading by its number"
        return found["rest"] + (", normed" if found["normed"] else "")


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's."""
MARKERS = "osD^vPX"
QUIET = "#8a8a8a"
_STYLE = {
    "text.parse_math": False,  # a dollar sign in a prompt is a dollar sign
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.8,
}


@contextmanager
def panels(
    file: Path, title: str, rows: int, columns: int, size: tuple[float, float], vector: bool = False, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its grid of axes to draw into; saved to `file` (PNG) when the block ends well.

    With `vector` it is saved as SVG beside it too, for pages with a dark side.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a font without someone's script is no reason to shout
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, **options)
        figure.suptitle(textwrap.fill(title, int(size[0] * 12.5)), x=0.01, ha="left", fontsize=11)
        yield figure, grid
        _save(figure, file)
        if vector:
            _save_vector(figure, file.with_suffix(".svg"))


def _save(figure: Any, file: Path) -> None:
    """As PNG of 256 colours: a third of the bytes, and a page holds many figures.

    They are chosen by coverage: the usual median cut goes by area, and gives a thin line its neighbour's colour.
    """
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    with Image.open(drawn) as image, atomic_file(file) as temporary:
        few = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(temporary, format="png")


def _save_vector(figure: Any, file: Path) -> None:
    """As SVG without title and background, its words as text, and the same bytes every time."""
    import matplotlib

    figure.suptitle("").set_in_layout(False)  # a page has a heading of its own

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "d2v"}), atomic_file(file) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None})


def whole_numbers(axis: Any) -> None:
    """Ticks of layers and epochs at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def log_axis(axes: Any, which: str) -> None:
    """A logarithmic x or y axis with plain numbers, since formulas are switched off."""
    from matplotlib.ticker import LogFormatter

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))


def groups(places: Sequence[Place]) -> dict[str, list[int]]:
    """Numbers of the readings of each curve, from the lowest layer up."""
    found: dict[str, list[int]] = {}
    for number in sorted(range(len(places)), key=lambda number: places[number].layer):
        found.setdefault(places[number].group, []).append(number)
    return dict(sorted(found.items(), key=lambda item: min(item[1])))


def layer_axis(axes: Any, places: Sequence[Place]) -> None:
    """Label the axis of layers; with one layer only, leave room around it."""
    layers = [place.layer for place in places]
    axes.set_xlabel("layer (0 = embeddings)" if places[0].group != "reading by its number" else "reading")
    whole_numbers(axes.xaxis)
    if min(layers) == max(layers):
        axes.set_xlim(layers[0] - 1, layers[0] + 1)


def short(text: str, width: int = 44) -> str:
    """One line of a text, with dots where it was cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3].rstrip()}..."


def labels(names: Sequence[str], width: int = 28) -> list[str]:
    """Names for a figure, all different, long ones cut in the middle: the ends tell paths apart."""
    found: list[str] = []
    for name in names:
        line = " ".join(name.split())
        keep = width // 2 - 1
        cut = line if len(line) <= width else f"{line[:keep].rstrip()} … {line[-keep:].lstrip()}"
        same = sum(cut == other or other.startswith(f"{cut} #") for other in found)
        found.append(f"{cut} #{same + 1}" if same else cut)
    return found


def legend_below(figure: Any, axes: Any, columns: int = 4) -> None:
    """One legend under all panels, with the curves of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def curve_name(text: str) -> str:
    """A name for a legend; matplotlib would drop one that starts with an underscore."""
    return f" {text}" if text.startswith("_") else text
