"""How many dimensions do points fill? Two estimates from the distances to their nearest neighbours.

TwoNN (Facco et al., 2017) looks at the ratio of the second distance to the first: where points fill d dimensions, a
ratio exceeds m with the chance m^-d. Levina and Bickel's maximum likelihood (2004) looks at k neighbours. Both take
distances that `maths.neighbours` made; zero distances, which are duplicates, are refused here and left out there.
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
"""Points below which TwoNN is refused."""
CDF_CONVENTIONS = ("i/N", "(i-1)/N")
"""How much of the distribution lies at or below the i-th of N sorted ratios.

The first is that of the paper's code and of scikit-dimension since 0.5, the second that of scikit-dimension before;
which gives estimates that are smaller by 0.07 % at 5,000 points and 0.7 % at 500.
"""
AVERAGES = ("mean", "inverse")
"""Local estimates are averaged as they are, as in the paper's code, or as their inverses, as scikit-dimension does."""
AREA_NORMALISATIONS = ("paper", "unit")
"""What the trapezoids over L layers are divided by: L, as the paper writes, or L - 1, as its code does."""


def log_distance_ratios(distances: Floats) -> Floats:
    """[n] log(r2 / r1) from [n, >= 2] distances to the nearest neighbours."""
    _refuse_zeros(distances)
    found: Floats = np.log(distances[:, 1]) - np.log(distances[:, 0])
    return found


def two_nn(logs: Floats, *, discard: float = 0.1, cdf: str = "i/N") -> float:
    """TwoNN of [n] log ratios: a line through the origin, fitted to the logarithm of their distribution.

    The largest `discard` of them are left out of the fit. With "i/N" the very largest always is: its share is all,
    and has no logarithm.
    """
    _check(logs, discard, cdf)
    return _slope(np.sort(logs), *_line(len(logs), discard, cdf))


def two_nn_mle(logs: Floats) -> float:
    """TwoNN without a fit and without leaving any ratio out: (N - 1) / sum of logs."""
    _check(logs, 0.0, "i/N")
    total = float(logs.sum())
    return (len(logs) - 1) / total if total > 0 else float("nan")


def local_dimensions(distances: Floats) -> Floats:
    """[n] Levina-Bickel estimates from [n, k] ascending distances; infinite where all k are equal."""
    _refuse_zeros(distances)
    k = distances.shape[1]
    if k < 2:
        raise InputError("Maximum likelihood needs 2 neighbours or more.")
    with np.errstate(divide="ignore"):
        found: Floats = (k - 1) / np.log(distances[:, -1:] / distances[:, :-1]).sum(axis=1)
    return found


def mle_dimension(local: Floats, *, average: str = "mean") -> float:
    """One number from the local estimates."""
    if average not in AVERAGES:
        raise unknown_name("average", average, AVERAGES)
    return float(local.mean()) if average == "mean" else float(1 / (1 / local).mean())


def normalised_area(values: Sequence[float] | Floats, *, normalisation: str = "paper") -> float:
    """The area under a curve over L layers, normalised; the layers are 1 to L, without the embeddings."""
    if normalisation not in AREA_NORMALISATIONS:
        raise unknown_name("area", normalisation, AREA_NORMALISATIONS)
    curve = np.asarray(values, np.float64)
    if len(curve) < 2:
        return float("nan")
    return float((curve[1:] + curve[:-1]).sum() / 2 / (len(curve) if normalisation == "paper" else len(curve) - 1))


def random_subsets(count: int, share: float, samples: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which of `count` texts are in each random part: the same for every layer and every encoder."""
    for number in range(samples):
        inside = np.zeros(count, bool)
        inside[np.random.default_rng((seed, count, number)).permutation(count)[: int(share * count)]] = True
        yield inside


def half_sample_interval(value: float, halves: Floats) -> tuple[float, float]:
    """The 95 % interval around an estimate from those of random halves of the points, none of them drawn twice.

    Halves differ from each other as much as whole samples do, and their neighbours are sought anew. To draw ratios
    with replacement looks simpler and is too sure of itself: neighbours share distances, so their ratios hang together.
    TwoNN depends on the number of points, so halves lie elsewhere; only how they scatter is used.
    """
    low, high = percentile_interval(halves - halves.mean())
    return value + low, value + high


def bootstrap_counts(count: int, samples: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """How often each of `count` points is drawn with replacement, for each sample."""
    for number in range(samples):
        drawn = np.random.default_rng((seed, number)).integers(0, count, count)
        yield np.bincount(drawn, minlength=count)


def mle_bootstrap(local: Floats, times: Iterable[NDArray[np.intp]], *, average: str) -> Floats:
    """Maximum likelihood of each bootstrap sample, in which local estimate i stands `times[i]` times."""
    found = []
    for each in times:
        total = each @ (local if average == "mean" else 1 / local)
        found.append(total / each.sum() if average == "mean" else each.sum() / total)
    return np.array(found)


def percentile_interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the samples."""
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def _line(count: int, discard: float, cdf: str) -> tuple[Floats, int]:
    """-log(1 - F) of the ratios that are kept, and how many these are."""
    kept = int(count * (1 - discard))
    below = np.arange(1, kept + 1) if cdf == "i/N" else np.arange(kept)
    below = below[below < count]
    return -np.log1p(-below / count), len(below)


def _slope(ordered: Floats, line: Floats, kept: int) -> float:
    x = ordered[:kept]
    squares = float(x @ x)
    return float(x @ line) / squares if squares > 0 else float("nan")


def _check(logs: Floats, discard: float, cdf: str) -> None:
    if cdf not in CDF_CONVENTIONS:
        raise unknown_name("convention", cdf, CDF_CONVENTIONS)
    if not 0 <= discard < 0.9:
        raise InputError(f"A share of {discard:g} of the ratios cannot be left out; give 0 or more, and less than 0.9.")
    if len(logs) < MIN_POINTS:
        raise InputError(f"TwoNN needs {MIN_POINTS} different points or more, not {len(logs)}.")
    if not np.isfinite(logs).all():
        raise InputError(
            "A ratio of distances is not finite; leave out points that are not finite or stand there twice."
        )


def _refuse_zeros(distances: Floats) -> None:
    if distances.size and not (distances[:, 0] > 0).all():
        raise InputError("Some points stand there twice; leave duplicates out first.")


_SPARE = 12
"""Candidates beyond those wanted: the wider the gap to the first that is left out, the more surely it is farther."""
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class Neighbours:
    """[n, k] distances from every point to others, ascending, and which these are; never itself."""

    distances: NDArray[np.float64]
    indices: NDArray[np.intp]

    def distances_within(self, points: NDArray[np.floating], rows: NDArray[np.intp], k: int = 2) -> NDArray[np.float64]:
        """[rows, k] distances of some points to their nearest among these same points.

        A random part of the points nearly always has `k` of its own among the neighbours of the whole, so nothing is
        searched again but for the few points where it has not.
        """
        inside = np.zeros(len(self.indices), bool)
        inside[rows] = True
        rank = inside[self.indices[rows]].cumsum(axis=1)
        places = np.stack([(rank >= wanted).argmax(axis=1) for wanted in range(1, k + 1)], axis=1)
        found = np.take_along_axis(self.distances[rows], places, axis=1)
        lacking = np.flatnonzero(rank[:, -1] < k)
        if len(lacking):
            part = _tensor(points[rows])
            found[lacking] = _directly(part, torch.from_numpy(lacking), k)[0].numpy()
        return found


def nearest_neighbours(points: NDArray[np.floating], k: int, *, chunk: int | None = None) -> Neighbours:
    """The `k` nearest neighbours of every row of [n, dim] points, by Euclidean distance.

    `chunk` rows are compared with all others at a time; by default as many as fit into a modest part of memory.
    """
    x = _tensor(points)
    if not 1 <= k < len(x):
        raise InputError(f"{len(x)} points have no {k} neighbours each; give more points.")
    if not torch.isfinite(x).all():
        raise InputError("Neighbours of points that are not finite do not exist; leave those points out.")
    out = torch.empty(len(x), k, dtype=torch.float64), torch.empty(len(x), k, dtype=torch.long)
    left = torch.arange(len(x))
    for kind in (torch.float32, torch.float64):
        if not len(left):
            break
        product = _Product(x, kind)
        left = torch.cat([_by_product(product, rows, out) for rows in _chunks(left, len(x), chunk)])
    for rows in _chunks(left, len(x), chunk):
        out[0][rows], out[1][rows] = _directly(x, rows, k)
    return Neighbours(out[0].numpy(), out[1].numpy())


def unique_row_indices(points: NDArray[np.floating]) -> NDArray[np.intp]:
    """The rows that are left when, of rows that are exactly equal, only the first is kept."""
    seen: dict[bytes, int] = {}
    for number, row in enumerate(np.ascontiguousarray(points) + 0.0):  # minus zero equals zero
        seen.setdefault(row.tobytes(), number)
    return np.fromiter(seen.values(), np.intp, len(seen))


class _Product:
    """Points prepared for approximate distances by a matrix product, and a bound on how wrong these are."""

    def __init__(self, x: Tensor, kind: torch.dtype) -> None:
        self.exact = x
        centred = x - x.mean(dim=0)  # what all points share would only cost digits
        self.unit = max(float(centred.abs().max()), 1e-300)  # no overflow in float32
        self.points = (centred / self.unit).to(kind)
        self.norms = torch.linalg.vector_norm(centred / self.unit, dim=1)
        self.squares = self.norms.square().to(kind)
        self.loss = torch.finfo(kind).eps * (x.shape[1] / 2 + 8)

    def propose(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """[rows, count] likely neighbours, and the squared distance to the farthest of them, as the product has it."""
        shifted = torch.addmm(self.squares, self.points[rows], self.points.T, alpha=-2)
        shifted[torch.arange(len(rows)), rows] = torch.inf
        found = shifted.topk(count, dim=1, largest=False, sorted=False)
        farthest = found.values.amax(dim=1).double() + self.norms[rows].square()
        return found.indices, farthest * self.unit**2

    def error(self, rows: Tensor, radius: Tensor) -> Tensor:
        """How wrong a squared distance to a point within `radius` can be.

        Such a point is no longer than |x| + radius; rounding a product of `dim` terms costs at most eps · dim / 2 of
        (|x| + |y|)², and all the rest a few eps more.
        """
        return torch.square(2 * self.norms[rows] * self.unit + radius) * self.loss


def _by_product(product: _Product, rows: Tensor, out: tuple[Tensor, Tensor]) -> Tensor:
    """Fill in the neighbours of some rows; returns the rows where one may have been overlooked."""
    x, k = product.exact, out[0].shape[1]
    count = min(k + _SPARE, len(x) - 1)
    near, farthest = product.propose(rows, count)
    parts = torch.split(torch.arange(len(rows)), max(1, _CHUNK_BYTES // (8 * count * x.shape[1])))
    exact = [torch.linalg.vector_norm(x[near[part]] - x[rows[part], None], dim=2) for part in parts]
    ordered, order = torch.cat(exact).sort(dim=1)
    out[0][rows], out[1][rows] = ordered[:, :k], near.gather(1, order)[:, :k]
    if count == len(x) - 1:  # all were proposed
        return rows[:0]
    radius = ordered[:, k - 1]
    return rows[farthest - product.error(rows, radius) < radius.square()]


def _directly(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances from some rows to all others by their differences: slow, and right."""
    all_distances = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
    all_distances[torch.arange(len(rows)), rows] = torch.inf
    found = all_distances.topk(k, dim=1, largest=False)
    return found.values, found.indices


def _tensor(points: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(points, np.float64))


def _chunks(rows: Tensor, width: int, chunk: int | None) -> tuple[Tensor, ...]:
    return torch.split(rows, chunk or max(1, _CHUNK_BYTES // (8 * width)))
