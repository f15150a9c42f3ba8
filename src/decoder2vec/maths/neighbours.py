"""The nearest neighbours of every point: exact, in float64, and never all distances at once.

Matrix products find the neighbours fast and their distances badly: what is left of |x|² + |y|² - 2xy has few right
digits where points lie close. So a product in float32 only proposes candidates, some more than are wanted; their
distances are taken again from the differences in float64; and a bound on the product's error says whether a point that
was not proposed could be nearer. Rows where it could are done again in float64, and at last without any product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.errors import InputError

_SPARE = 12
"""Candidates beyond those wanted: the wider the gap to the first that is left out, the more surely it is farther."""
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class Neighbours:
    """[n, k] distances from every point to others, ascending, and which these are; never itself."""

    distances: NDArray[np.float64]
    indices: NDArray[np.intp]

    def among(self, points: NDArray[np.floating], rows: NDArray[np.intp], k: int = 2) -> NDArray[np.float64]:
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


def nearest(points: NDArray[np.floating], k: int, *, chunk: int | None = None) -> Neighbours:
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


def first_of_equals(points: NDArray[np.floating]) -> NDArray[np.intp]:
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
