"""How many dimensions the vectors of each layer fill: a curve over layers with its uncertainty, and its area.

As Janapati and Ji do (2025): TwoNN in float64 with the largest tenth of the ratios left out, maximum likelihood over 50
neighbours beside it. Estimates depend on the number of points, so the same is done for halves and quarters of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.clouds import Clouds, in_curve
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.geometry import anisotropy, effective_rank
from decoder2vec.maths.neighbours import Neighbours, first_of_equals, nearest

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
        if self.cdf not in dimension.CDFS:
            raise unknown_name("convention", self.cdf, dimension.CDFS)
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


Watch = Callable[[str, int], object]
"""Called with what is being done and how much more of it is."""


def dimension_curve(
    clouds: Clouds, plan: DimensionPlan | None = None, watch: Watch = lambda *_: None
) -> dict[str, Any]:
    """The dimension of every layer and of the embeddings themselves, as a document for JSON."""
    plan = plan or DimensionPlan()
    plan.check()
    if len(clouds.texts) < dimension.FEWEST:
        raise InputError(f"{len(clouds.texts)} different texts say nothing; give {dimension.FEWEST} or more.")
    found = []
    for number in range(len(clouds)):
        found.append(measure(clouds.layer(number), plan))
        watch("layers", 1)
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
    kept = first_of_equals(vectors)
    result = CloudDimension(points=len(kept), duplicates=len(vectors) - len(kept))
    result.anisotropy, result.effective_rank = anisotropy(vectors), effective_rank(vectors)
    if len(kept) < dimension.FEWEST:
        result.flags.append("constant" if len(kept) == 1 else "too few points")
        return result
    if len(kept) < _FEW:
        result.flags.append("few points")
    points = np.asarray(vectors[kept], np.float64)
    near = nearest(points, min(max(plan.neighbours, _ENOUGH), len(points) - 1))

    _two_nn(result, near, plan)
    _maximum_likelihood(result, near, plan)
    _parts(result, points, near, plan, texts=(len(vectors), kept))
    return result


def _two_nn(result: CloudDimension, near: Neighbours, plan: DimensionPlan) -> None:
    logs = dimension.log_ratios(near.distances)
    if (logs == 0).mean() > _MANY_TIES:
        result.flags.append("ties")
    result.twonn = dimension.two_nn(logs, discard=plan.discard, cdf=plan.cdf)
    result.twonn_likelihood = dimension.two_nn_likelihood(logs)


def _maximum_likelihood(result: CloudDimension, near: Neighbours, plan: DimensionPlan) -> None:
    if near.distances.shape[1] < plan.neighbours:
        result.flags.append(f"too few points for {plan.neighbours} neighbours")
        return
    local = dimension.local_dimensions(near.distances[:, : plan.neighbours])
    if not np.isfinite(local).all():  # some point is equally far from all its neighbours
        result.flags.append("ties")
        return
    result.mle = dimension.maximum_likelihood(local, average=plan.average)
    times = dimension.bootstrap(len(local), plan.samples, plan.seed)
    result.mle_95 = dimension.interval(dimension.likelihood_samples(local, times, average=plan.average))


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
        for inside in dimension.parts(count, share, draws, plan.seed):
            rows = np.flatnonzero(inside[texts[1]])
            if len(rows) < dimension.FEWEST:  # too small a part: nothing is said about it
                return
            logs = dimension.log_ratios(among.among(points, rows))
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
    for by in dimension.AREAS:
        value, scale = dimension.area(values, by=by), 1.0 if by == "paper" else len(curve) / max(1, len(curve) - 1)
        result[by] = _rounded(value)
        result[f"{by}_95"] = _rounded(dimension.half_sample_interval(value, scale * samples)) if len(samples) else None
    return result


def _area_samples(curve: list[CloudDimension]) -> list[float]:
    """The paper's area for each random half of the texts; empty where a layer has no dimension."""
    samples = [each.samples for each in curve if each.samples is not None]
    if len(samples) < len(curve) or len(curve) < 2:
        return []
    return [round(dimension.area(values), 4) for values in np.stack(samples, axis=1)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_rounded(each) for each in value]
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
