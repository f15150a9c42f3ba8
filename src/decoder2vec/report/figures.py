"""One style for every figure of a report: palette, panels, axes, legends, texts, and saving as PNG and SVG."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder2vec.storage import atomic_file

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""
MARKERS = "osD^vPX"
GREY = "#8a8a8a"
UNNAMED_READINGS = "readings by index"
"""The group of readings whose layer and pooling are unknown."""

_RC_PARAMS = {
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
_READING = re.compile(r"layer -?\d+(?P<normed> normed)?, (?P<details>.*)", re.S)


@dataclass(frozen=True)
class Figure:
    """A figure on disk with its texts; without a file, `caption` says why it could not be drawn."""

    title: str
    caption: str
    file: Path | None = None
    """The PNG; a page embeds the SVG of the same name."""
    headline: str = ""
    """The main finding in one sentence, if the figure has one."""


@dataclass(frozen=True)
class ReadingLabel:
    """A reading as text, such as `layer 3, mean of '{text}'`, and its layer."""

    text: str
    layer: int

    @property
    def group(self) -> str:
        """The text without the layer: the readings of one group form one curve."""
        match = _READING.fullmatch(self.text)
        return match["details"] + (", normed" if match["normed"] else "") if match else UNNAMED_READINGS


@contextmanager
def panels(
    file: Path,
    title: str,
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    with_svg: bool = False,
    **subplot_options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yield a matplotlib figure and its grid of axes, and save it when the block ends without an error.

    Args:
        file: Where to write the PNG.
        title: Text above the panels.
        rows: Rows of panels.
        columns: Columns of panels.
        size: Width and height in inches.
        with_svg: Also write an SVG of the same name without title and background, to be embedded in a page.
        subplot_options: Further arguments of `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure

    with matplotlib.rc_context(_RC_PARAMS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font lacks some scripts: not worth a warning
        figure = MatplotlibFigure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, **subplot_options)
        figure.suptitle(textwrap.fill(title, int(size[0] * 12.5)), x=0.01, ha="left", fontsize=11)
        yield figure, grid
        save_png(figure, file)
        if with_svg:
            save_svg(figure, file.with_suffix(".svg"))


def save_png(figure: Any, file: Path) -> None:
    """Write a PNG of 256 colours, a third of the size of a true-colour one.

    The colours are chosen by coverage: the usual median cut goes by area, and gives a thin line its neighbour's colour.
    """
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    with Image.open(buffer) as image, atomic_file(file) as temporary:
        quantised = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        quantised.save(temporary, format="png")


def save_svg(figure: Any, file: Path) -> None:
    """Write an SVG without title and background, with its words as text; equal figures give equal bytes."""
    import matplotlib

    figure.suptitle("").set_in_layout(False)  # a page has its own heading
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "d2v"}), atomic_file(file) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None})


def colour(index: int) -> str:
    """The colour of the curve with this index; they repeat after seven."""
    return COLOURS[index % len(COLOURS)]


def curve_style(index: int) -> dict[str, str]:
    """Colour and marker of the curve with this index, as arguments of `Axes.plot`."""
    return {"color": colour(index), "marker": MARKERS[index % len(MARKERS)]}


def integer_ticks(axis: Any) -> None:
    """Put the ticks of an axis of layers or epochs at integers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def log_axis(axes: Any, which: str) -> None:
    """Make the x or y axis logarithmic, with plain numbers at its ticks since math text is switched off."""
    from matplotlib.ticker import LogFormatter

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))


def layer_axis(axes: Any, readings: Sequence[ReadingLabel]) -> None:
    """Label the axis of layers; if there is only one layer, leave room on both sides."""
    layers = [reading.layer for reading in readings]
    axes.set_xlabel("layer (0 = embeddings)" if readings[0].group != UNNAMED_READINGS else "reading")
    integer_ticks(axes.xaxis)
    if min(layers) == max(layers):
        axes.set_xlim(layers[0] - 1, layers[0] + 1)


def group_readings(readings: Sequence[ReadingLabel]) -> dict[str, list[int]]:
    """Indices of the readings of each group, from the lowest layer up."""
    groups: dict[str, list[int]] = {}
    for index in sorted(range(len(readings)), key=lambda index: readings[index].layer):
        groups.setdefault(readings[index].group, []).append(index)
    return dict(sorted(groups.items(), key=lambda item: min(item[1])))


def legend_below(figure: Any, axes: Any, columns: int = 4) -> None:
    """Put one legend with the curves of `axes` under all panels."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(columns, len(names)))


def legend_label(text: str) -> str:
    """A name for a legend; matplotlib drops names that start with an underscore."""
    return f" {text}" if text.startswith("_") else text


def shorten(text: str, width: int = 44) -> str:
    """The text on one line, with dots where it was cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3].rstrip()}..."


def unique_labels(names: Sequence[str], width: int = 28) -> list[str]:
    """Names for a figure, all different; long ones are cut in the middle, since paths differ at their ends."""
    labels: list[str] = []
    for name in names:
        line = " ".join(name.split())
        half = width // 2 - 1
        label = line if len(line) <= width else f"{line[:half].rstrip()} … {line[-half:].lstrip()}"
        duplicates = sum(label == other or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{duplicates + 1}" if duplicates else label)
    return labels


def file_stems(names: Sequence[str]) -> list[str]:
    """A file name without ending for each name: all different, and valid on every file system."""
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
        duplicates = sum(stem == other or other.startswith(f"{stem}--") for other in stems)
        stems.append(f"{stem}--{duplicates + 1}" if duplicates else stem)
    return stems


def format_points(value: float) -> str:
    """A score in points with one digit."""
    return f"{value:.1f}" if math.isfinite(value) else "not a number"


def format_signed(value: float) -> str:
    """A difference in points with its sign; zero has none."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def format_count(value: float) -> str:
    """A count with a short unit: 134 M, 1,234."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 100 * size else f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: `1 run`, `2 runs`; `nouns` is the plural if it does not end in s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
