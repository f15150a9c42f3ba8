"""Intrinsic dimension of a set of points, estimated from the distances to exact nearest neighbours.

TwoNN (Facco et al., 2017) uses the ratio of the second distance to the first: where points fill d dimensions, a ratio
exceeds m with probability m^-d. Levina and Bickel's maximum likelihood (2004) uses k neighbours. Neither is defined for
distances of zero: drop duplicates first with `unique_row_indices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.errors import InputError, unknown_name

Floats = NDArray[np.float64]

MIN_POINTS = 10
"""TwoNN is refused for fewer points."""
CDF_CONVENTIONS = ("i/N", "(i-1)/N")
"""Share of the distribution at or below the i-th of N sorted ratios.

The first is that of the paper's code and of scikit-dimension since 0.5, the second that of scikit-dimension before; the
second gives estimates that are smaller by 0.07 % at 5,000 points and 0.7 % at 500.
"""
AVERAGES = ("mean", "inverse")
"""Average the local estimates themselves, as the paper's code does, or their inverses, as scikit-dimension does."""
AREA_NORMALISATIONS = ("paper", "unit")
"""Divide the area over L layers by L, as the paper writes, or by L - 1, as its code does."""

_EXTRA_CANDIDATES = 12
"""Candidates beyond the k wanted: the wider the gap to the first one left out, the surer that it is farther away."""
_CHUNK_BYTES = 32 << 20


# --- estimates -------------------------------------------------------------------------------------------------------


def log_distance_ratios(distances: Floats) -> Floats:
    """[n] log(r2 / r1) from [n, >= 2] ascending distances to the nearest neighbours."""
    _refuse_duplicates(distances)
    log_ratios: Floats = np.log(distances[:, 1]) - np.log(distances[:, 0])
    return log_ratios


def two_nn(log_ratios: Floats, *, discard: float = 0.1, cdf: str = "i/N") -> float:
    """TwoNN estimate: slope of a line through the origin, fitted to -log(1 - F) over the sorted log ratios.

    Args:
        log_ratios: [n] log ratios from `log_distance_ratios`.
        discard: Share of the largest ratios that the fit leaves out. With "i/N" the largest one is always left out,
            since 1 - F is 0 there and has no logarithm.
        cdf: One of CDF_CONVENTIONS.

    """
    _check_two_nn(log_ratios, discard, cdf)
    count = len(log_ratios)
    kept = int(count * (1 - discard))
    below = np.arange(1, kept + 1) if cdf == "i/N" else np.arange(kept)
    below = below[below < count]
    x, y = np.sort(log_ratios)[: len(below)], -np.log1p(-below / count)
    squares = float(x @ x)
    return float(x @ y) / squares if squares > 0 else float("nan")


def two_nn_mle(log_ratios: Floats) -> float:
    """TwoNN by maximum likelihood, without a fit and with all ratios: (N - 1) / sum of log ratios."""
    _check_two_nn(log_ratios, 0.0, "i/N")
    total = float(log_ratios.sum())
    return (len(log_ratios) - 1) / total if total > 0 else float("nan")


def local_dimensions(distances: Floats) -> Floats:
    """[n] Levina-Bickel estimates from [n, k] ascending distances; infinite where all k are equal."""
    _refuse_duplicates(distances)
    k = distances.shape[1]
    if k < 2:
        raise InputError("Maximum likelihood needs 2 neighbours or more.")
    with np.errstate(divide="ignore"):
        local: Floats = (k - 1) / np.log(distances[:, -1:] / distances[:, :-1]).sum(axis=1)
    return local


def mle_dimension(local: Floats, *, average: str = "mean") -> float:
    """Levina-Bickel estimate of all points: the average of the local estimates."""
    if average not in AVERAGES:
        raise unknown_name("average", average, AVERAGES)
    return float(local.mean()) if average == "mean" else float(1 / (1 / local).mean())


def normalised_area(values: Sequence[float] | Floats, *, normalisation: str = "paper") -> float:
    """Area under a curve over layers 1 to L (without the embeddings), by trapezoids, divided by L or L - 1."""
    if normalisation not in AREA_NORMALISATIONS:
        raise unknown_name("area", normalisation, AREA_NORMALISATIONS)
    curve = np.asarray(values, np.float64)
    if len(curve) < 2:
        return float("nan")
    return float((curve[1:] + curve[:-1]).sum() / 2 / (len(curve) if normalisation == "paper" else len(curve) - 1))


def _check_two_nn(log_ratios: Floats, discard: float, cdf: str) -> None:
    if cdf not in CDF_CONVENTIONS:
        raise unknown_name("convention", cdf, CDF_CONVENTIONS)
    if not 0 <= discard < 0.9:
        raise InputError(f"discard is a share of 0 or more and below 0.9, not {discard:g}.")
    if len(log_ratios) < MIN_POINTS:
        raise InputError(f"TwoNN needs {MIN_POINTS} different points or more, not {len(log_ratios)}.")
    if not np.isfinite(log_ratios).all():
        raise InputError("A ratio of distances is not finite; drop duplicates and points that are not finite.")


def _refuse_duplicates(distances: Floats) -> None:
    if distances.size and not (distances[:, 0] > 0).all():
        raise InputError("Some points occur twice; drop duplicates first.")


# --- uncertainty -----------------------------------------------------------------------------------------------------


def random_subsets(count: int, share: float, samples: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """[count] booleans of the members of each random subset; the same for every layer and every encoder.

    Args:
        count: Number of points.
        share: Size of a subset as a share of `count`.
        samples: Number of subsets.
        seed: Seed of the random choice.

    """
    for sample in range(samples):
        members = np.zeros(count, bool)
        members[np.random.default_rng((seed, count, sample)).permutation(count)[: int(share * count)]] = True
        yield members


def half_sample_interval(value: float, halves: Floats) -> tuple[float, float]:
    """95 % interval of an estimate from the [samples] estimates of random halves of the points.

    Halves vary as much as whole samples do, and their neighbours are searched within each half. A bootstrap of the
    ratios would be simpler and too narrow: neighbours share distances, so their ratios are correlated. TwoNN depends on
    the number of points, so estimates of halves are shifted; only their spread is used.
    """
    low, high = percentile_interval(halves - halves.mean())
    return value + low, value + high


def bootstrap_counts(count: int, samples: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """[count] how often each point is drawn with replacement, for each sample."""
    for sample in range(samples):
        rows = np.random.default_rng((seed, sample)).integers(0, count, count)
        yield np.bincount(rows, minlength=count)


def mle_bootstrap(local: Floats, samples: Iterable[NDArray[np.intp]], *, average: str) -> Floats:
    """[samples] `mle_dimension` of bootstrap samples, given as counts of each local estimate."""
    estimates = []
    for counts in samples:
        total = counts @ (local if average == "mean" else 1 / local)
        estimates.append(total / counts.sum() if average == "mean" else counts.sum() / total)
    return np.array(estimates)


def percentile_interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """The bounds of the middle `level` of the samples."""
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


# --- nearest neighbours ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """The k nearest neighbours of every point, the point itself excluded."""

    distances: NDArray[np.float64]
    """[n, k] ascending."""
    indices: NDArray[np.intp]
    """[n, k]"""

    def distances_within(self, points: NDArray[np.floating], rows: NDArray[np.intp], k: int = 2) -> NDArray[np.float64]:
        """[rows, k] distances of the points in `rows` to their nearest neighbours among these same points.

        A random subset nearly always holds `k` of the neighbours already known, so only the few points for which it
        does not are searched again.
        """
        is_member = np.zeros(len(self.indices), bool)
        is_member[rows] = True
        members_up_to = is_member[self.indices[rows]].cumsum(axis=1)
        columns = np.stack([(members_up_to >= rank).argmax(axis=1) for rank in range(1, k + 1)], axis=1)
        distances = np.take_along_axis(self.distances[rows], columns, axis=1)
        incomplete = np.flatnonzero(members_up_to[:, -1] < k)
        if len(incomplete):
            subset = _to_float64_tensor(points[rows])
            distances[incomplete] = _search_exactly(subset, torch.from_numpy(incomplete), k)[0].numpy()
        return distances


def nearest_neighbours(points: NDArray[np.floating], k: int, *, chunk: int | None = None) -> Neighbours:
    """The `k` exact nearest neighbours of every row of [n, dim] points, by Euclidean distance.

    Candidates come from a float32 matrix product. Rows for which its error bound allows that a neighbour was missed
    are searched with a float64 product, and if that is not sure either, by the differences of the vectors.

    Args:
        points: [n, dim] points.
        k: Number of neighbours.
        chunk: Rows that are compared with all others at a time; by default as many as fit into a small part of memory.

    """
    x = _to_float64_tensor(points)
    if not 1 <= k < len(x):
        raise InputError(f"{len(x)} points have no {k} neighbours each; give more points.")
    if not torch.isfinite(x).all():
        raise InputError("Some points are not finite and have no neighbours; drop them first.")
    out = torch.empty(len(x), k, dtype=torch.float64), torch.empty(len(x), k, dtype=torch.long)
    remaining = torch.arange(len(x))
    for dtype in (torch.float32, torch.float64):
        if not len(remaining):
            break
        product = _DistanceProduct(x, dtype)
        remaining = torch.cat([_search_by_product(product, rows, out) for rows in _chunks(remaining, len(x), chunk)])
    for rows in _chunks(remaining, len(x), chunk):
        out[0][rows], out[1][rows] = _search_exactly(x, rows, k)
    return Neighbours(out[0].numpy(), out[1].numpy())


def unique_row_indices(points: NDArray[np.floating]) -> NDArray[np.intp]:
    """Indices of the rows that remain when, of rows that are exactly equal, only the first is kept."""
    first_seen: dict[bytes, int] = {}
    for index, row in enumerate(np.ascontiguousarray(points) + 0.0):  # adding 0 turns minus zero into zero
        first_seen.setdefault(row.tobytes(), index)
    return np.fromiter(first_seen.values(), np.intp, len(first_seen))


class _DistanceProduct:
    """Approximate distances by a matrix product in `dtype`, and a bound on their error."""

    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self.exact = x
        centred = x - x.mean(dim=0)  # a common offset would only cost digits
        self.unit = max(float(centred.abs().max()), 1e-300)  # scaled by it, nothing overflows in float32
        self.points = (centred / self.unit).to(dtype)
        self.norms = torch.linalg.vector_norm(centred / self.unit, dim=1)
        self.squares = self.norms.square().to(dtype)
        self.relative_error = torch.finfo(dtype).eps * (x.shape[1] / 2 + 8)

    def propose(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """[rows, count] likely neighbours, and [rows] approximate squared distances to the farthest of them."""
        shifted = torch.addmm(self.squares, self.points[rows], self.points.T, alpha=-2)
        shifted[torch.arange(len(rows)), rows] = torch.inf
        candidates = shifted.topk(count, dim=1, largest=False, sorted=False)
        farthest = candidates.values.amax(dim=1).double() + self.norms[rows].square()
        return candidates.indices, farthest * self.unit**2

    def error(self, rows: Tensor, radius: Tensor) -> Tensor:
        """Largest error of an approximate squared distance to a point within `radius`.

        The norm of such a point is at most |x| + radius; rounding a product of `dim` terms costs at most eps · dim / 2
        of (|x| + |y|)², and everything else a few eps more.
        """
        return torch.square(2 * self.norms[rows] * self.unit + radius) * self.relative_error


def _search_by_product(product: _DistanceProduct, rows: Tensor, out: tuple[Tensor, Tensor]) -> Tensor:
    """Fill in the neighbours of `rows`; return the rows for which a neighbour may have been missed."""
    x, k = product.exact, out[0].shape[1]
    count = min(k + _EXTRA_CANDIDATES, len(x) - 1)
    candidates, farthest = product.propose(rows, count)
    chunks = torch.split(torch.arange(len(rows)), max(1, _CHUNK_BYTES // (8 * count * x.shape[1])))
    exact = [torch.linalg.vector_norm(x[candidates[chunk]] - x[rows[chunk], None], dim=2) for chunk in chunks]
    distances, order = torch.cat(exact).sort(dim=1)
    out[0][rows], out[1][rows] = distances[:, :k], candidates.gather(1, order)[:, :k]
    if count == len(x) - 1:  # all points were candidates
        return rows[:0]
    radius = distances[:, k - 1]
    return rows[farthest - product.error(rows, radius) < radius.square()]


def _search_exactly(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the neighbours of `rows`, by differences to all other points: slow and exact."""
    distances = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
    distances[torch.arange(len(rows)), rows] = torch.inf
    smallest = distances.topk(k, dim=1, largest=False)
    return smallest.values, smallest.indices


def _to_float64_tensor(points: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(points, np.float64))


def _chunks(rows: Tensor, width: int, chunk: int | None) -> tuple[Tensor, ...]:
    return torch.split(rows, chunk or max(1, _CHUNK_BYTES // (8 * width)))
