"""Intrinsic dimension as a picture: curves of one or several encoders over their layers, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.intrinsic_dimension import curve_label
from decoder2vec.analysis.pruning import LossCurve
from decoder2vec.heads.layerwise import Explanation
from decoder2vec.report.figures import (
    COLOURS,
    MARKERS,
    QUIET,
    Place,
    curve_name,
    groups,
    labels,
    layer_axis,
    legend_below,
    panels,
    short,
    whole_numbers,
)
from decoder2vec.report.result_files import Dimensions

_PARTS = (("--", COLOURS[1], "a half of them"), (":", COLOURS[2], "a quarter"))


def draw_dimension(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """TwoNN and maximum likelihood by layer; then the parts of one encoder, or the areas of several."""
    counts = sorted({curve["texts"]["count"] for curve in curves})
    texts = " and ".join(f"{count:,}" for count in counts)
    name = curve_label(curves[0]) if len(curves) == 1 else f"{len(curves)} encoders"
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
    axes.plot(layers, values, color=colour, marker=marker, label=curve_name(short(curve_label(curve), 40)))


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
    axes.set_yticks(range(len(curves)), [short(curve_label(curve), 22) for curve in curves])
    axes.set_ylim(len(curves) - 0.5, -0.5)
    axes.set_title("area under TwoNN, depth = 1")
    axes.set_xlabel("mean dimension over depth")
    axes.tick_params(axis="y", labelcolor=QUIET)


def _layers(axes: Any) -> None:
    axes.set_xlabel("layer (0 = embeddings; the last is normed)")
    axes.set_ylim(bottom=0)
    whole_numbers(axes.xaxis)


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
                _geometry_curve(axes, shape, field, number)
            axes.set_title(words)
            axes.set_ylabel(label)
            axes.set_xlabel("layer (the last is normed)")
            whole_numbers(axes.xaxis)
        for axes, shape in zip(grid.flat[len(shown) :], shapes, strict=False):
            image = _map(axes, shape, one=len(shapes) == 1)
            figure.colorbar(image, ax=axes, shrink=0.8, label="linear CKA")
        if len(shapes) > 1:
            legend_below(figure, grid[0][0], columns=3)


def _geometry_curve(axes: Any, shape: dict[str, Any], field: str, number: int) -> None:
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


def draw_curve(curve: LossCurve, file: Path) -> None:
    """Write the picture to `file` (PNG)."""
    minima = curve.minima
    shape = "" if minima.drop_rise_drop else "; drop-rise-drop is absent"
    title = f"{Path(curve.model).name} on {curve.data}: loss of every depth, batches of {curve.batch}{shape}"
    layers, losses, errors = range(1, minima.n_layers + 1), np.array(curve.losses), np.array(curve.errors)
    with panels(file, title, 1, 1, (7.4, 3.9)) as (_, grid):
        axes = grid[0][0]
        axes.axvline(minima.n_layers // 2 + 0.5, color=QUIET, linestyle=":", linewidth=1)
        axes.fill_between(layers, losses - errors, losses + errors, color=COLOURS[0], alpha=0.18, linewidth=0)
        axes.plot(layers, losses, color=COLOURS[0], marker=".")
        for number, (name, depth, inside) in enumerate(
            (("small", minima.small, minima.small_is_local), ("large", minima.large, minima.large_is_local))
        ):
            _mark(axes, curve, name, depth, inside, number + 1)
        axes.set_xlabel("layers kept")
        axes.set_ylabel(f"contrastive loss (scale {curve.plan.scale:g})")
        whole_numbers(axes.xaxis)
        axes.legend()


def _mark(axes: Any, curve: LossCurve, name: str, depth: int, inside: bool, number: int) -> None:
    share = curve.parameters[depth - 1] / curve.parameters[-1]
    label = f"{name}: {depth} layers, {share:.0%} of the parameters{'' if inside else ' (no valley)'}"
    axes.plot(
        depth,
        curve.losses[depth - 1],
        MARKERS[number],
        color=COLOURS[number],
        markersize=8,
        fillstyle="full" if inside else "none",
        linestyle="none",
        label=label,
    )


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
