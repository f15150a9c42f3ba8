"""How many dimensions the vectors of each layer fill: a curve over layers with its uncertainty, and its area.

As Janapati and Ji do (2025): TwoNN in float64 with the largest tenth of the ratios left out, maximum likelihood over 50
neighbours beside it. Estimates depend on the number of points, so the same is done for halves and quarters of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.layer_embeddings import LayerEmbeddings, in_curve
from decoder2vec.errors import DataFileError, InputError, unknown_name
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.geometry import anisotropy, effective_rank
from decoder2vec.maths.intrinsic_dimension import (
    Neighbours,
    half_sample_interval,
    nearest_neighbours,
    unique_row_indices,
)

_FEW = 300
"""Points below which an estimate is flagged as rough."""
_ENOUGH = 50
"""Neighbours that nearly always hold the two nearest of a quarter of the points."""
_ENOUGH_FOR_HALF = 24
_MANY_TIES = 0.01


@dataclass(frozen=True)
class DimensionPlan:
    """How the dimension is estimated. The defaults are the paper's."""

    discard: float = 0.1
    """The share of the largest ratios that TwoNN leaves out of its fit."""
    cdf: str = "i/N"
    """What share of the ratios lies at or below the i-th: i/N or (i-1)/N."""
    neighbours: int = 50
    """For maximum likelihood."""
    average: str = "mean"
    """How local estimates of maximum likelihood become one: mean, or inverse."""
    halves: int = 200
    """Random halves of the texts: they give the intervals of TwoNN, and say what fewer points would."""
    quarters: int = 20
    """Random quarters, to see how the estimate moves with the number of points."""
    samples: int = 500
    """Bootstrap samples, for the interval of maximum likelihood."""
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be estimated now, not after the model has run."""
        if self.cdf not in dimension.CDF_CONVENTIONS:
            raise unknown_name("convention", self.cdf, dimension.CDF_CONVENTIONS)
        if self.average not in dimension.AVERAGES:
            raise unknown_name("average", self.average, dimension.AVERAGES)
        if not 0 <= self.discard < 0.9:
            raise InputError(f"discard is {self.discard:g}; give a share from 0 to less than 0.9.")
        if self.neighbours < 2 or min(self.halves, self.quarters, self.samples) < 1:
            raise InputError("Give 2 neighbours, and 1 half, 1 quarter and 1 bootstrap sample, or more.")


@dataclass
class CloudDimension:
    """What was found for one cloud of vectors; what is undefined is None, and `flags` say why."""

    twonn: float | None = None
    twonn_95: tuple[float, float] | None = None
    twonn_likelihood: float | None = None
    """TwoNN without a fit, no ratio left out."""
    mle: float | None = None
    mle_95: tuple[float, float] | None = None
    subsamples: list[dict[str, Any]] = field(default_factory=list)
    anisotropy: float | None = None
    effective_rank: float | None = None
    points: int = 0
    """Different vectors; those that are exactly equal count once."""
    duplicates: int = 0
    flags: list[str] = field(default_factory=list)
    """Of: not finite, constant, too few points, few points, ties."""
    samples: NDArray[np.float64] | None = None
    """TwoNN of every random half of the texts."""

    def to_json(self) -> dict[str, Any]:
        """Numbers of six digits, without the samples."""
        return {key: _rounded(value) for key, value in asdict(self).items() if key != "samples"}


OnProgress = Callable[[str, int], object]
"""Called with what is being done and how much more of it is."""


def dimension_curve(
    clouds: LayerEmbeddings, plan: DimensionPlan | None = None, on_progress: OnProgress = lambda *_: None
) -> dict[str, Any]:
    """The dimension of every layer and of the embeddings themselves, as a document for JSON."""
    plan = plan or DimensionPlan()
    plan.check()
    if len(clouds.texts) < dimension.MIN_POINTS:
        raise InputError(f"{len(clouds.texts)} different texts say nothing; give {dimension.MIN_POINTS} or more.")
    found = []
    for number in range(len(clouds)):
        found.append(measure(clouds.layer(number), plan))
        on_progress("layers", 1)
    embedding = measure(clouds.embeddings(), plan)
    curve = [found[number] for number in in_curve(clouds.readings)]
    return {
        **clouds.describe(),
        "texts": {"count": len(clouds.texts), "fingerprint": clouds.fingerprint()},
        "plan": asdict(plan),
        "area": _area(curve),
        "layers": [
            {"layer": reading.layer, "normed": reading.normed, **each.to_json()}
            for reading, each in zip(clouds.readings, found, strict=True)
        ],
        "embedding": {"dim": clouds.encoder.dim, **embedding.to_json()},
        "area_samples": _area_samples(curve),
    }


def measure(vectors: NDArray[np.floating], plan: DimensionPlan | None = None) -> CloudDimension:
    """Everything about one cloud of [n, dim] vectors."""
    plan = plan or DimensionPlan()
    plan.check()
    if not np.isfinite(vectors).all():
        return CloudDimension(flags=["not finite"])
    kept = unique_row_indices(vectors)
    result = CloudDimension(points=len(kept), duplicates=len(vectors) - len(kept))
    result.anisotropy, result.effective_rank = anisotropy(vectors), effective_rank(vectors)
    if len(kept) < dimension.MIN_POINTS:
        result.flags.append("constant" if len(kept) == 1 else "too few points")
        return result
    if len(kept) < _FEW:
        result.flags.append("few points")
    points = np.asarray(vectors[kept], np.float64)
    near = nearest_neighbours(points, min(max(plan.neighbours, _ENOUGH), len(points) - 1))

    _two_nn(result, near, plan)
    _maximum_likelihood(result, near, plan)
    _parts(result, points, near, plan, texts=(len(vectors), kept))
    return result


def _two_nn(result: CloudDimension, near: Neighbours, plan: DimensionPlan) -> None:
    logs = dimension.log_distance_ratios(near.distances)
    if (logs == 0).mean() > _MANY_TIES:
        result.flags.append("ties")
    result.twonn = dimension.two_nn(logs, discard=plan.discard, cdf=plan.cdf)
    result.twonn_likelihood = dimension.two_nn_mle(logs)


def _maximum_likelihood(result: CloudDimension, near: Neighbours, plan: DimensionPlan) -> None:
    if near.distances.shape[1] < plan.neighbours:
        result.flags.append(f"too few points for {plan.neighbours} neighbours")
        return
    local = dimension.local_dimensions(near.distances[:, : plan.neighbours])
    if not np.isfinite(local).all():  # some point is equally far from all its neighbours
        result.flags.append("ties")
        return
    result.mle = dimension.mle_dimension(local, average=plan.average)
    times = dimension.bootstrap_counts(len(local), plan.samples, plan.seed)
    result.mle_95 = dimension.percentile_interval(dimension.mle_bootstrap(local, times, average=plan.average))


def _parts(
    result: CloudDimension,
    points: NDArray[np.float64],
    near: Neighbours,
    plan: DimensionPlan,
    texts: tuple[int, NDArray[np.intp]],
) -> None:
    """TwoNN of random halves and quarters of the texts; `texts` says how many there are and which the points are."""
    closest = Neighbours(near.distances[:, :_ENOUGH_FOR_HALF], near.indices[:, :_ENOUGH_FOR_HALF])
    for share, draws, among in ((0.5, plan.halves, closest), (0.25, plan.quarters, near)):
        count, found, sizes = texts[0], [], []
        for inside in dimension.random_subsets(count, share, draws, plan.seed):
            rows = np.flatnonzero(inside[texts[1]])
            if len(rows) < dimension.MIN_POINTS:  # too small a part: nothing is said about it
                return
            logs = dimension.log_distance_ratios(among.distances_within(points, rows))
            found.append(dimension.two_nn(logs, discard=plan.discard, cdf=plan.cdf))
            sizes.append(len(rows))
        part = {"points": round(float(np.mean(sizes))), "mean": float(np.mean(found)), "std": float(np.std(found))}
        result.subsamples.append({**part, "draws": draws})
        if share == 0.5 and result.twonn is not None and np.isfinite(found).all() and math.isfinite(result.twonn):
            result.samples = np.array(found)
            result.twonn_95 = dimension.half_sample_interval(result.twonn, result.samples)


def _area(curve: list[CloudDimension]) -> dict[str, Any]:
    """The area under TwoNN over the layers, by both conventions; a half of the texts is the same in all layers."""
    samples = np.array(_area_samples(curve))
    values = [math.nan if each.twonn is None else each.twonn for each in curve]
    result: dict[str, Any] = {"layers": len(curve)}
    for by in dimension.AREA_NORMALISATIONS:
        value = dimension.normalised_area(values, normalisation=by)
        scale = 1.0 if by == "paper" else len(curve) / max(1, len(curve) - 1)
        result[by] = _rounded(value)
        result[f"{by}_95"] = _rounded(dimension.half_sample_interval(value, scale * samples)) if len(samples) else None
    return result


def _area_samples(curve: list[CloudDimension]) -> list[float]:
    """The paper's area for each random half of the texts; empty where a layer has no dimension."""
    samples = [each.samples for each in curve if each.samples is not None]
    if len(samples) < len(curve) or len(curve) < 2:
        return []
    return [round(dimension.normalised_area(values), 4) for values in np.stack(samples, axis=1)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_rounded(each) for each in value]
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value


def read_curves(file: Path) -> list[dict[str, Any]]:
    """The curves in a file that `d2v analyze id` wrote: one, or several that were compared."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        curves = document.get("encoders", [document])
        for curve in curves:
            needed = {"encoder", "texts", "plan", "area", "layers", "area_samples"}
            if missing := needed - curve.keys():
                raise DataFileError(f"{file} has no {', '.join(sorted(missing))}; give a file of `d2v analyze id`.")
    except FileNotFoundError:
        raise DataFileError(f"There is no file {file}.") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{file} cannot be read as a result of `d2v analyze id`: {error}.") from None
    return [{**curve, "label": file.stem} for curve in curves] if len(curves) == 1 else list(curves)


def label(curve: dict[str, Any]) -> str:
    """What a curve is called beside others: the file it came from, if it was alone there, else its encoder."""
    return str(curve.get("label", curve["encoder"]))


def differences(curves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Area of every curve but the first, less that of the first.

    Where texts and plan are the same, so were the random halves of the texts, and the difference has an interval.
    TwoNN depends on the number of points: `comparable` says whether that and the plan are the same.
    """
    return [_difference(curves[0], other) for other in curves[1:]]


def _difference(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    same_texts = first["texts"]["fingerprint"] == other["texts"]["fingerprint"]
    same_plan = first["plan"] == other["plan"]
    areas = first["area"]["unit"], other["area"]["unit"]
    result: dict[str, Any] = {
        "encoder": label(other),
        "less": label(first),
        "area_unit": None if None in areas else round(areas[1] - areas[0], 4),
        "area_unit_95": None,
        "comparable": same_plan and first["texts"]["count"] == other["texts"]["count"],
    }
    if same_texts and same_plan and first["area_samples"] and other["area_samples"]:
        low, high = half_sample_interval(areas[1] - areas[0], _unit_samples(other) - _unit_samples(first))
        result["area_unit_95"] = [round(low, 4), round(high, 4)]
    return result


def _unit_samples(curve: dict[str, Any]) -> Any:
    """Areas over a depth of 1, so that a model cut short is not smaller for that alone."""
    layers = curve["area"]["layers"]
    return np.array(curve["area_samples"]) * layers / max(1, layers - 1)


def area_said(curve: dict[str, Any]) -> str:
    """The area in words."""
    value, bounds = curve["area"]["unit"], curve["area"]["unit_95"]
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "")
