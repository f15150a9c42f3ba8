"""Figures of single analyses: intrinsic dimension, geometry, pruning loss, and the explanation of a similarity."""

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
    GREY,
    MARKERS,
    ReadingLabel,
    colour,
    curve_style,
    group_readings,
    integer_ticks,
    layer_axis,
    legend_below,
    legend_label,
    log_axis,
    panels,
    shorten,
    unique_labels,
)
from decoder2vec.report.result_files import DimensionCurve

_SUBSAMPLE_STYLES = (("--", COLOURS[1], "half of them"), (":", COLOURS[2], "a quarter"))
_GEOMETRY_PANELS = (
    ("anisotropy", "mean cosine of two texts", "anisotropy"),
    ("effective_rank", "directions in use", "effective rank"),
    ("uniformity", "log mean exp(-2 d²): lower is more even", "uniformity"),
    ("alignment", "mean d² of pairs: lower is closer", "alignment"),
)
_STEM_DISTANCE = 0.16
"""Distance between the stems of two groups at the same layer, as a share of a layer."""


def draw_intrinsic_dimension(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw TwoNN and maximum likelihood by layer; then random subsamples of one encoder, or the areas of several.

    Args:
        curves: Results of `d2v analyze id`, one for each encoder.
        file: Where to write the PNG.
    """
    counts = sorted({curve["texts"]["count"] for curve in curves})
    texts = " and ".join(f"{count:,}" for count in counts)
    name = curve_label(curves[0]) if len(curves) == 1 else f"{len(curves)} encoders"
    title = f"Intrinsic dimension of {name} on {texts} texts"
    with panels(file, title, 1, 3, (11.4, 4.0)) as (figure, (row,)):
        for index, curve in enumerate(curves):
            _draw_dimension_curve(row[0], curve, "twonn", index)
            _draw_dimension_curve(row[1], curve, "mle", index)
        for axes, estimate in ((row[0], "TwoNN"), (row[1], f"MLE, {curves[0]['plan']['neighbours']} neighbours")):
            axes.set_title(f"{estimate}, with 95 % intervals")
            _label_dimension_axes(axes)
        if len(curves) == 1:
            _draw_subsamples(row[2], curves[0])
        else:
            _draw_areas(row[2], curves)
            legend_below(figure, row[0], columns=3)


def _curve_rows(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Indices of the rows that form a curve: raw layers, and the last one after the final norm."""
    last = max(row["layer"] for row in rows)
    return [index for index, row in enumerate(rows) if row["normed"] == (row["layer"] == last)]


def _curve_points(curve: dict[str, Any], measure: str) -> tuple[list[int], list[float]]:
    """Layers and values of a curve; undefined values are NaN."""
    rows = [curve["layers"][index] for index in _curve_rows(curve["layers"])]
    return [row["layer"] for row in rows], [math.nan if row[measure] is None else row[measure] for row in rows]


def _draw_dimension_curve(axes: Any, curve: dict[str, Any], estimate: str, index: int) -> None:
    layers, values = _curve_points(curve, estimate)
    rows = [curve["layers"][row] for row in _curve_rows(curve["layers"])]
    low, high = np.array([row[f"{estimate}_95"] or (math.nan, math.nan) for row in rows], float).T
    axes.fill_between(layers, low, high, color=colour(index), alpha=0.2, linewidth=0)
    axes.plot(layers, values, **curve_style(index), label=legend_label(shorten(curve_label(curve), 40)))


def _draw_subsamples(axes: Any, curve: dict[str, Any]) -> None:
    """Draw the same curve from fewer points: if it falls with them, it has not converged."""
    layers, values = _curve_points(curve, "twonn")
    axes.plot(layers, values, color=COLOURS[0], label="all points")
    rows = [curve["layers"][index] for index in _curve_rows(curve["layers"])]
    for index in range(max(len(row["subsamples"]) for row in rows)):
        samples = [row["subsamples"][index] if index < len(row["subsamples"]) else {} for row in rows]
        mean, std = (np.array([sample.get(key) or math.nan for sample in samples], float) for key in ("mean", "std"))
        linestyle, line_colour, name = _SUBSAMPLE_STYLES[index]
        axes.plot(layers, mean, color=line_colour, linestyle=linestyle, label=name)
        axes.fill_between(layers, mean - std, mean + std, color=line_colour, alpha=0.15, linewidth=0)
    axes.set_title("TwoNN of random subsamples, ± 1 sd")
    _label_dimension_axes(axes)
    axes.legend()


def _draw_areas(axes: Any, curves: Sequence[dict[str, Any]]) -> None:
    for index, curve in enumerate(curves):
        value, bounds = curve["area"]["unit"], curve["area"]["unit_95"]
        if value is None:
            continue
        if bounds:
            axes.plot(bounds, [index, index], color=colour(index), linewidth=3, alpha=0.4)
        axes.plot([value], [index], **curve_style(index), markersize=7)
    axes.set_yticks(range(len(curves)), [shorten(curve_label(curve), 22) for curve in curves])
    axes.set_ylim(len(curves) - 0.5, -0.5)
    axes.set_title("area under TwoNN, depth = 1")
    axes.set_xlabel("mean dimension over depth")
    axes.tick_params(axis="y", labelcolor=GREY)


def _label_dimension_axes(axes: Any) -> None:
    axes.set_xlabel("layer (0 = embeddings; the last is normed)")
    axes.set_ylabel("dimension")
    axes.set_ylim(bottom=0)
    integer_ticks(axes.xaxis)


def draw_dimension_comparison(curves: Sequence[DimensionCurve], file: Path) -> None:
    """Draw TwoNN with its interval on the left, the maximum likelihood estimate on the right if it is known."""
    estimates = [("twonn", "TwoNN, with 95 % intervals")]
    if any(math.isfinite(layer.mle) for curve in curves for layer in curve.layers):
        estimates.append(("mle", "maximum likelihood"))
    names = unique_labels([curve.name for curve in curves], 40)
    size = (1.4 + 3.9 * len(estimates), 3.6 + 0.17 * len(curves))
    title = "Intrinsic dimension by layer"
    with panels(file, title, 1, len(estimates), size, with_svg=True, sharey=True) as (figure, grid):
        for axes, (estimate, panel_title) in zip(grid[0], estimates, strict=True):
            for index, (curve, name) in enumerate(zip(curves, names, strict=True)):
                layers = [layer.layer for layer in curve.layers]
                values = [getattr(layer, estimate) for layer in curve.layers]
                axes.plot(layers, values, **curve_style(index), label=legend_label(name))
                if estimate == "twonn":
                    low, high = [layer.low for layer in curve.layers], [layer.high for layer in curve.layers]
                    axes.fill_between(layers, low, high, color=colour(index), alpha=0.18, linewidth=0)
            axes.set_title(panel_title)
            axes.set_xlabel("layer (0 = embeddings)")
            integer_ticks(axes.xaxis)
        grid[0][0].set_ylabel("dimension")
        legend_below(figure, grid[0][0], columns=2)


def draw_geometry(encoders: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw one panel for each measure with the curves of all encoders, then a map of layer similarity for each encoder.

    Args:
        encoders: Results of `d2v analyze geometry`, one for each encoder.
        file: Where to write the PNG.
    """
    measured = [
        panel
        for panel in _GEOMETRY_PANELS
        if any(row[panel[0]] is not None for result in encoders for row in result["layers"])
    ]
    count = len(measured) + len(encoders)
    n_rows = -(-count // 4)
    n_columns = -(-count // n_rows)
    name = encoders[0]["encoder"] if len(encoders) == 1 else f"{len(encoders)} encoders"
    title = f"Geometry of {name} on {encoders[0]['texts']['count']:,} texts"
    with panels(file, title, n_rows, n_columns, (3.5 * n_columns, 1.0 + 3.1 * n_rows)) as (figure, grid):
        for axes in grid.flat[count:]:
            axes.set_axis_off()
        for axes, (measure, axis_label, panel_title) in zip(grid.flat, measured, strict=False):
            for index, result in enumerate(encoders):
                layers, values = _curve_points(result, measure)
                label = legend_label(shorten(result["encoder"], 40))
                axes.plot(layers, values, **curve_style(index), label=label)
            axes.set_title(panel_title)
            axes.set_ylabel(axis_label)
            axes.set_xlabel("layer (the last is normed)")
            integer_ticks(axes.xaxis)
        for axes, result in zip(grid.flat[len(measured) :], encoders, strict=False):
            map_title = "similarity of layers" if len(encoders) == 1 else shorten(result["encoder"], 30)
            image = _draw_layer_similarity(axes, result, map_title)
            figure.colorbar(image, ax=axes, shrink=0.8, label="linear CKA")
        if len(encoders) > 1:
            legend_below(figure, grid[0][0], columns=3)


def _draw_layer_similarity(axes: Any, result: dict[str, Any], title: str) -> Any:
    """Draw CKA between all layers; undefined values stay blank."""
    rows = _curve_rows(result["layers"])
    values = np.array(result["cka"], dtype=float)[np.ix_(rows, rows)]
    image = axes.imshow(values, origin="lower", vmin=0, vmax=1, cmap="viridis")
    axes.grid(visible=False)
    axes.set_title(title)
    axes.set_xlabel("layer")
    axes.set_ylabel("layer")
    integer_ticks(axes.xaxis)
    integer_ticks(axes.yaxis)
    return image


def draw_loss_curve(curve: LossCurve, file: Path) -> None:
    """Draw the contrastive loss of a model cut at every depth, with its two minima."""
    minima = curve.minima
    shape = "" if minima.drop_rise_drop else "; drop-rise-drop is absent"
    title = f"{Path(curve.model).name} on {curve.data}: loss at every depth, batches of {curve.batch}{shape}"
    layers, losses, errors = range(1, minima.n_layers + 1), np.array(curve.losses), np.array(curve.errors)
    with panels(file, title, 1, 1, (7.4, 3.9)) as (_, grid):
        axes = grid[0][0]
        axes.axvline(minima.n_layers // 2 + 0.5, color=GREY, linestyle=":", linewidth=1)
        axes.fill_between(layers, losses - errors, losses + errors, color=COLOURS[0], alpha=0.18, linewidth=0)
        axes.plot(layers, losses, color=COLOURS[0], marker=".")
        _draw_minimum(axes, curve, "small", minima.small, minima.small_is_local, 1)
        _draw_minimum(axes, curve, "large", minima.large, minima.large_is_local, 2)
        axes.set_xlabel("layers kept")
        axes.set_ylabel(f"contrastive loss (scale {curve.plan.scale:g})")
        integer_ticks(axes.xaxis)
        axes.legend()


def _draw_minimum(axes: Any, curve: LossCurve, name: str, depth: int, inside: bool, index: int) -> None:
    share = curve.parameters[depth - 1] / curve.parameters[-1]
    axes.plot(
        depth,
        curve.losses[depth - 1],
        MARKERS[index],
        color=COLOURS[index],
        markersize=8,
        fillstyle="full" if inside else "none",
        linestyle="none",
        label=f"{name}: {depth} layers, {share:.0%} of the parameters{'' if inside else ' (no local minimum)'}",
    )


def draw_vocabulary(document: dict[str, Any], file: Path) -> None:
    """Draw the tokens that texts use by their number, and what pruning the others leaves of the model.

    Args:
        document: The result of `d2v analyze vocabulary`.
        file: Where to write the PNG.
    """
    texts, sizes = document["by_texts"], document["by_size"]
    title = f"Vocabulary of {Path(document['model']).name} on {document['texts']['count']:,} texts"
    with panels(file, title, 1, 2, (9.4, 3.9)) as (_, ((by_texts, by_size),)):
        numbers = [row["texts"] for row in texts]
        by_texts.plot(numbers, [row["rows"] / document["rows"] for row in texts], label="tokens kept", **curve_style(0))
        by_texts.set_xlabel("texts")
        log_axis(by_texts, "x")
        by_size.plot(
            [row["rows"] for row in sizes],
            [row["parameters"] / document["parameters"] for row in sizes],
            label="parameters left",
            **curve_style(0),
        )
        by_size.set_xlabel("tokens kept, the most frequent ones")
        if document["held_out"]["count"]:
            for axes, rows, key in ((by_texts, texts, "texts"), (by_size, sizes, "rows")):
                shares = [row["held_out_covered"] for row in rows]
                axes.plot([row[key] for row in rows], shares, label="held-out texts unchanged", **curve_style(1))
        for axes in (by_texts, by_size):
            axes.set_ylim(0, 1.02)
            axes.legend()


def draw_explanation(explanation: Explanation, file: Path, texts: tuple[str, str] | None = None) -> None:
    """Draw cosine and contribution of every layer, one colour for each pooling and template.

    Args:
        explanation: The explanation of a similarity.
        file: Where to write the PNG.
        texts: The two texts, for the title.
    """
    readings = [ReadingLabel(str(reading), reading.layer) for reading in explanation.readings]
    groups = group_readings(readings)
    title = f"Score {explanation.score:.2f} (similarity {explanation.similarity:.2f} before calibration)"
    if texts:
        title = f"{shorten(texts[0], 46)} / {shorten(texts[1], 46)}: {title[0].lower()}{title[1:]}"
    with panels(file, title, 1, 2, (8.0, 3.9)) as (figure, (row,)):
        for index, (group, members) in enumerate(groups.items()):
            layers = [readings[member].layer for member in members]
            cosines = [explanation.cosines[member] for member in members]
            row[0].plot(layers, cosines, **curve_style(index), label=shorten(group))
            shifted = [layer + _STEM_DISTANCE * (index - (len(groups) - 1) / 2) for layer in layers]
            contributions = [explanation.contributions[member] for member in members]
            row[1].vlines(shifted, 0, contributions, color=colour(index), linewidth=1.6, alpha=0.6)
            row[1].plot(shifted, contributions, linestyle="", **curve_style(index))
            row[1].axhline(0, color="black", linewidth=0.8)
        row[0].axhline(1, color="black", linewidth=0.8)
        row[0].set_title("cosine of each layer (1 = the same)")
        row[0].set_ylabel("cosine of the two texts")
        row[1].set_title("contribution to the similarity")
        row[1].set_ylabel("contribution")
        for axes in row:
            layer_axis(axes, readings)
        if len(groups) > 1:
            legend_below(figure, row[0], columns=2)
