"""Intrinsic dimension of the vectors of every layer: a curve over layers with its uncertainty, and its area.

As in Janapati and Ji (2025): TwoNN in float64 without the largest tenth of the ratios, and maximum likelihood over 50
neighbours. Estimates depend on the number of points, so halves and quarters of the texts are estimated as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.layer_embeddings import (
    MEASURING,
    Document,
    LayerEmbeddings,
    LayerMeasurement,
    curve_indices,
    load_texts,
    write_documents,
)
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, unknown_name
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.geometry import anisotropy, effective_rank
from decoder2vec.maths.intrinsic_dimension import (
    Neighbours,
    half_sample_interval,
    nearest_neighbours,
    unique_row_indices,
)
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.storage import check_output_file, parse_json

_FEW_POINTS = 300
"""Estimates from fewer points are flagged."""
_SEARCHED_NEIGHBOURS = 50
"""Enough that they nearly always contain the two nearest neighbours within a quarter of the points."""
_SEARCHED_FOR_HALF = 24
_MAX_TIES = 0.01
"""Estimates are flagged if a larger share of the points has two nearest neighbours at the same distance."""


@dataclass(frozen=True)
class DimensionPlan:
    """How the dimension is estimated. The defaults are the paper's."""

    discard: float = 0.1
    """Share of the largest ratios that TwoNN leaves out of its fit."""
    cdf: str = "i/N"
    """Empirical cumulative share at the i-th of N ratios: i/N or (i-1)/N."""
    neighbours: int = 50
    """Neighbours for maximum likelihood."""
    average: str = "mean"
    """How maximum likelihood averages local estimates: mean, or inverse (the mean of their inverses)."""
    halves: int = 200
    """Random halves of the texts, for the intervals of TwoNN and the estimate from fewer points."""
    quarters: int = 20
    """Random quarters of the texts, to see how the estimate changes with the number of points."""
    samples: int = 500
    """Bootstrap samples for the interval of maximum likelihood."""
    seed: int = 0

    def check(self) -> None:
        """Refuse invalid settings before the model runs."""
        if self.cdf not in dimension.CDF_CONVENTIONS:
            raise unknown_name("convention", self.cdf, dimension.CDF_CONVENTIONS)
        if self.average not in dimension.AVERAGES:
            raise unknown_name("average", self.average, dimension.AVERAGES)
        if not 0 <= self.discard < 0.9:
            raise InputError(f"discard is {self.discard:g}; give a share from 0 to less than 0.9.")
        if self.neighbours < 2 or min(self.halves, self.quarters, self.samples) < 1:
            raise InputError("Give at least 2 neighbours, 1 half, 1 quarter and 1 bootstrap sample.")


def measure_dimension(
    encoders: Sequence[str | Path | Encoder],
    texts: str | Path | Sequence[str] | None = None,
    *,
    out: str | Path | None = None,
    plan: DimensionPlan | None = None,
    limit: int | None = None,
    pooling: str | None = None,
    template: str | None = None,
    attention: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    notify: Callable[[str], object] = lambda _: None,
) -> Document:
    """Estimate the intrinsic dimension of every layer of one or several encoders, and compare their areas.

    Example:
        >>> import decoder2vec as d2v
        >>> texts = [f"Item {n} costs {n * 7 % 13} coins." for n in range(30)]
        >>> document = d2v.measure_dimension(["tiny-llama"], texts, plan=d2v.DimensionPlan(neighbours=5))
        >>> [row["layer"] for row in document["layers"]], document["texts"]["count"]
        ([0, 1, 2, 3, 4, 4], 30)

    Args:
        encoders: Encoders, names of saved encoders or models, or .json files that this function wrote earlier.
        texts: A .txt file, any data file, or a list of texts. Not needed for .json files.
        out: Write the returned document here (.json).
        plan: How the dimension is estimated.
        limit: Use at most this many texts, evenly spaced.
        pooling: Pooling of the layers; by default the encoder's.
        template: Template of models given by name.
        attention: Attention of models given by name: causal or bidirectional.
        device: cuda, mps or cpu, for encoders given by name.
        dtype: Dtype such as "float32" or "bfloat16", for encoders given by name.
        notify: Called with one-line messages.

    Returns:
        The document of `dimension_curve` for one encoder; for several {"encoders": [...], "differences": [...]}.
    """
    target = Path(out) if out is not None else None
    sources = [source for source in (texts, *encoders) if isinstance(source, str | Path)]
    check_output_file(target, ".json", sources=sources)
    plan = plan or DimensionPlan()
    plan.check()
    names = [encoder for encoder in encoders if isinstance(encoder, str | Path)]
    saved = {str(name): read_curves(Path(name)) for name in names if str(name).endswith(".json")}
    measured: list[Document] = []
    if unmeasured := [encoder for encoder in encoders if str(encoder) not in saved]:
        chosen, file = load_texts(texts, limit, notify)
        measurement = LayerMeasurement(chosen, file, pooling, template, attention, device, dtype)
        measured = measurement.run(unmeasured, lambda layers: dimension_curve(layers, plan))
    curves: list[Document] = []
    for encoder in encoders:
        curves += saved[str(encoder)] if str(encoder) in saved else [measured.pop(0)]
    return write_documents(target, curves, differences=area_differences(curves))


@in_phase(MEASURING)
def dimension_curve(layers: LayerEmbeddings, plan: DimensionPlan | None = None) -> Document:
    """Intrinsic dimension of every layer and of the encoder's embeddings, as a document for JSON.

    Args:
        layers: Vectors of every layer.
        plan: How the dimension is estimated.
    """
    plan = plan or DimensionPlan()
    plan.check()
    if len(layers.texts) < dimension.MIN_POINTS:
        raise InputError(f"{len(layers.texts)} different texts are too few; give {dimension.MIN_POINTS} or more.")
    estimates = []
    for index in range(len(layers)):
        estimates.append(estimate_dimension(layers.layer(index), plan))
        current_progress().advance_part(len(layers) - index, f"{index + 1} of {len(layers)}")
    embedding = estimate_dimension(layers.embeddings(), plan)
    curve = [estimates[index] for index in curve_indices(layers.readings)]
    return {
        **layers.describe(),
        "texts": {"count": len(layers.texts), "fingerprint": layers.texts_fingerprint()},
        "plan": asdict(plan),
        "area": _area(curve),
        "layers": [
            {"layer": reading.layer, "normed": reading.normed, **estimate.to_json()}
            for reading, estimate in zip(layers.readings, estimates, strict=True)
        ],
        "embedding": {"dim": layers.encoder.dim, **embedding.to_json()},
        "area_samples": _area_samples(curve),
    }


@dataclass
class DimensionEstimate:
    """Estimates for one set of vectors. An undefined value is None, and `flags` give the reason."""

    twonn: float | None = None
    twonn_95: tuple[float, float] | None = None
    twonn_likelihood: float | None = None
    """TwoNN by maximum likelihood, with all ratios, instead of a linear fit."""
    mle: float | None = None
    mle_95: tuple[float, float] | None = None
    subsamples: list[dict[str, Any]] = field(default_factory=list)
    """TwoNN of random halves, then of random quarters: mean, standard deviation and number of points."""
    anisotropy: float | None = None
    effective_rank: float | None = None
    points: int = 0
    """Unique vectors."""
    duplicates: int = 0
    flags: list[str] = field(default_factory=list)
    """Any of: not finite, constant, too few points, few points, ties."""
    samples: NDArray[np.float64] | None = None
    """TwoNN of every random half of the texts."""

    def to_json(self) -> dict[str, Any]:
        """All fields but `samples`, values with six significant digits."""
        return {key: _round(value) for key, value in asdict(self).items() if key != "samples"}


def estimate_dimension(vectors: NDArray[np.floating], plan: DimensionPlan | None = None) -> DimensionEstimate:
    """Estimate the intrinsic dimension of [n, dim] vectors."""
    plan = plan or DimensionPlan()
    plan.check()
    if not np.isfinite(vectors).all():
        return DimensionEstimate(flags=["not finite"])
    unique = unique_row_indices(vectors)
    result = DimensionEstimate(points=len(unique), duplicates=len(vectors) - len(unique))
    result.anisotropy, result.effective_rank = anisotropy(vectors), effective_rank(vectors)
    if len(unique) < dimension.MIN_POINTS:
        result.flags.append("constant" if len(unique) == 1 else "too few points")
        return result
    if len(unique) < _FEW_POINTS:
        result.flags.append("few points")
    points = np.asarray(vectors[unique], np.float64)
    neighbours = nearest_neighbours(points, min(max(plan.neighbours, _SEARCHED_NEIGHBOURS), len(points) - 1))
    _estimate_two_nn(result, neighbours, plan)
    _estimate_maximum_likelihood(result, neighbours, plan)
    _estimate_subsamples(result, points, neighbours, plan, n_texts=len(vectors), text_of_point=unique)
    return result


def _estimate_two_nn(result: DimensionEstimate, neighbours: Neighbours, plan: DimensionPlan) -> None:
    logs = dimension.log_distance_ratios(neighbours.distances)
    if (logs == 0).mean() > _MAX_TIES:
        result.flags.append("ties")
    result.twonn = dimension.two_nn(logs, discard=plan.discard, cdf=plan.cdf)
    result.twonn_likelihood = dimension.two_nn_mle(logs)


def _estimate_maximum_likelihood(result: DimensionEstimate, neighbours: Neighbours, plan: DimensionPlan) -> None:
    if neighbours.distances.shape[1] < plan.neighbours:
        result.flags.append(f"too few points for {plan.neighbours} neighbours")
        return
    local = dimension.local_dimensions(neighbours.distances[:, : plan.neighbours])
    if not np.isfinite(local).all():  # a point has the same distance to all its neighbours
        result.flags.append("ties")
        return
    result.mle = dimension.mle_dimension(local, average=plan.average)
    samples = dimension.bootstrap_counts(len(local), plan.samples, plan.seed)
    result.mle_95 = dimension.percentile_interval(dimension.mle_bootstrap(local, samples, average=plan.average))


def _estimate_subsamples(
    result: DimensionEstimate,
    points: NDArray[np.float64],
    neighbours: Neighbours,
    plan: DimensionPlan,
    *,
    n_texts: int,
    text_of_point: NDArray[np.intp],
) -> None:
    """TwoNN of random halves and quarters of the texts. A subsample with too few points ends the estimation."""
    nearest_few = Neighbours(neighbours.distances[:, :_SEARCHED_FOR_HALF], neighbours.indices[:, :_SEARCHED_FOR_HALF])
    for share, draws, searched in ((0.5, plan.halves, nearest_few), (0.25, plan.quarters, neighbours)):
        estimates, sizes = [], []
        for subset in dimension.random_subsets(n_texts, share, draws, plan.seed):
            rows = np.flatnonzero(subset[text_of_point])
            if len(rows) < dimension.MIN_POINTS:
                return
            logs = dimension.log_distance_ratios(searched.distances_within(points, rows))
            estimates.append(dimension.two_nn(logs, discard=plan.discard, cdf=plan.cdf))
            sizes.append(len(rows))
        mean, std = float(np.mean(estimates)), float(np.std(estimates))
        result.subsamples.append({"points": round(float(np.mean(sizes))), "mean": mean, "std": std, "draws": draws})
        if share == 0.5 and result.twonn is not None and np.isfinite(estimates).all() and math.isfinite(result.twonn):
            result.samples = np.array(estimates)
            result.twonn_95 = dimension.half_sample_interval(result.twonn, result.samples)


def _area(curve: list[DimensionEstimate]) -> dict[str, Any]:
    """Area under TwoNN over the layers, by both conventions. A random half has the same texts in all layers."""
    samples = np.array(_area_samples(curve))
    values = [math.nan if estimate.twonn is None else estimate.twonn for estimate in curve]
    result: dict[str, Any] = {"layers": len(curve)}
    for by in dimension.AREA_NORMALISATIONS:
        value = dimension.normalised_area(values, normalisation=by)
        scale = 1.0 if by == "paper" else len(curve) / max(1, len(curve) - 1)
        result[by] = _round(value)
        result[f"{by}_95"] = _round(dimension.half_sample_interval(value, scale * samples)) if len(samples) else None
    return result


def _area_samples(curve: list[DimensionEstimate]) -> list[float]:
    """The paper's area for each random half of the texts; empty if a layer has no estimate."""
    samples = [estimate.samples for estimate in curve if estimate.samples is not None]
    if len(samples) < len(curve) or len(curve) < 2:
        return []
    return [round(dimension.normalised_area(values), 4) for values in np.stack(samples, axis=1)]


def _round(value: Any) -> Any:
    """Floats with six significant digits, also inside lists and dicts; None for a float that is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_round(item) for item in value]
    return {key: _round(item) for key, item in value.items()} if isinstance(value, dict) else value


def read_curves(file: Path) -> list[Document]:
    """Read the curves that `d2v analyze id` wrote: one, or several that were compared."""
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
        curves = document.get("encoders", [document])
        for curve in curves:
            required = {"encoder", "texts", "plan", "area", "layers", "area_samples"}
            if missing := required - curve.keys():
                raise DataFileError(f"{file} has no {', '.join(sorted(missing))}; give a file of `d2v analyze id`.")
    except FileNotFoundError:
        raise DataFileError(f"There is no file {file}.") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{file} cannot be read as a result of `d2v analyze id`: {error}.") from None
    return [{**curve, "label": file.stem} for curve in curves] if len(curves) == 1 else list(curves)


def curve_label(curve: Document) -> str:
    """The name of a curve in tables and figures: the file it was alone in, else its encoder."""
    return str(curve.get("label", curve["encoder"]))


def area_differences(curves: Sequence[Document]) -> list[Document]:
    """The area of every curve but the first, minus the area of the first.

    If texts and plan are the same, so are the random halves of the texts, and the difference has an interval. TwoNN
    depends on the number of points: `comparable` is true if it and the plan are the same.
    """
    return [_area_difference(curves[0], curve) for curve in curves[1:]]


def _area_difference(first: Document, other: Document) -> Document:
    same_texts = first["texts"]["fingerprint"] == other["texts"]["fingerprint"]
    same_plan = first["plan"] == other["plan"]
    areas = first["area"]["unit"], other["area"]["unit"]
    result: Document = {
        "encoder": curve_label(other),
        "less": curve_label(first),
        "area_unit": None if None in areas else round(areas[1] - areas[0], 4),
        "area_unit_95": None,
        "comparable": same_plan and first["texts"]["count"] == other["texts"]["count"],
    }
    if same_texts and same_plan and first["area_samples"] and other["area_samples"]:
        low, high = half_sample_interval(areas[1] - areas[0], _unit_area_samples(other) - _unit_area_samples(first))
        result["area_unit_95"] = [round(low, 4), round(high, 4)]
    return result


def _unit_area_samples(curve: Document) -> Any:
    """Area samples over a depth of 1, so that a pruned model's area is not smaller only because it has fewer layers."""
    layers = curve["area"]["layers"]
    return np.array(curve["area_samples"]) * layers / max(1, layers - 1)


def format_area(curve: Document) -> str:
    """The area over a depth of 1 with its interval, for tables."""
    value, bounds = curve["area"]["unit"], curve["area"]["unit_95"]
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "")
