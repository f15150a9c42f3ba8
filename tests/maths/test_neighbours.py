"""Nearest neighbours are those of a plain search over all pairs, whatever the numbers look like."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from decoder2vec.errors import InputError
from decoder2vec.maths import intrinsic_dimension as neighbours
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours, unique_row_indices


def plain(points, k):
    """By differences in float64, all pairs."""
    distances = cdist(points.astype(np.float64), points.astype(np.float64))
    np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, :k]


def gaussian(rows=400, columns=50):
    return np.random.default_rng(0).standard_normal((rows, columns))


CLOUDS = {
    "plain": gaussian(),
    "far from the origin": gaussian() * 1e-3 + 1000,
    "one huge dimension": np.c_[gaussian(), 1e5 * gaussian(400, 1)],
    "float32 far away": (gaussian() * 1e-2 + 1000).astype(np.float32),
    "enormous": gaussian() * 1e30,
    "minute": gaussian() * 1e-30,
    "all equally far": np.eye(60),
    "a lattice": np.random.default_rng(1).permutation(np.stack(np.meshgrid(*[np.arange(6.0)] * 3), -1).reshape(-1, 3)),
    "close pairs": np.repeat(gaussian(200), 2, axis=0) + 1e-9 * gaussian(),
    "fewer than are proposed": gaussian(9),
}


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_distances_are_those_of_all_pairs(name, k):
    found = nearest_neighbours(CLOUDS[name], k)
    np.testing.assert_allclose(found.distances, plain(CLOUDS[name], k), rtol=1e-12)


def test_the_neighbours_named_are_at_the_distances_said_and_never_the_point_itself():
    points = CLOUDS["plain"]
    found = nearest_neighbours(points, 5)
    again = np.linalg.norm(points[found.indices] - points[:, None], axis=2)
    np.testing.assert_allclose(again, found.distances, rtol=1e-12)
    assert (found.indices != np.arange(len(points))[:, None]).all()


@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_the_size_of_a_chunk_changes_nothing(chunk):
    found, whole = nearest_neighbours(CLOUDS["plain"], 3, chunk=chunk), nearest_neighbours(CLOUDS["plain"], 3)
    np.testing.assert_array_equal(found.indices, whole.indices)
    np.testing.assert_allclose(found.distances, whole.distances, rtol=1e-14)


def test_a_neighbour_that_the_product_overlooks_is_found_again(monkeypatch):
    """Proposals of the first product are spoiled; the bound must say so, and the next ways must mend it."""
    points = CLOUDS["plain"]
    honest = neighbours._Product.propose

    def spoiled(self, rows, count):
        near, farthest = honest(self, rows, count)
        if self.points.dtype != neighbours.torch.float32:
            return near, farthest
        # the farthest candidates in place of the nearest, which is as bad as a float32 product can get
        return (near + 1 + rows[:, None]) % len(points), farthest * 0

    monkeypatch.setattr(neighbours._Product, "propose", spoiled)
    monkeypatch.setattr(neighbours, "_SPARE", 1)
    np.testing.assert_allclose(nearest_neighbours(points, 2).distances, plain(points, 2), rtol=1e-12)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", ["plain", "far from the origin", "one huge dimension", "close pairs"])
def test_the_bound_on_the_error_of_a_product_holds(kind, name):
    points = neighbours._tensor(CLOUDS[name])
    product = neighbours._Product(points, getattr(neighbours.torch, kind))
    rows = neighbours.torch.arange(len(points))
    shifted = neighbours.torch.addmm(product.squares, product.points, product.points.T, alpha=-2).double()
    said = (shifted + product.norms.square()[:, None]) * product.unit**2
    true = cdist(points, points)
    bound = product.error(rows[:, None], neighbours.torch.from_numpy(true))
    assert (np.abs(said - true**2) <= bound).all()


@pytest.mark.parametrize("columns", [3, 50])
@pytest.mark.parametrize("k", [4, 50])
def test_neighbours_inside_a_part_are_those_of_a_search_in_it(k, columns):
    """With few neighbours of the whole, many points have none of the part among them and are searched again."""
    points = gaussian(300, columns)
    rows = np.sort(np.random.default_rng(2).choice(300, 75, replace=False))
    found = nearest_neighbours(points, k).distances_within(points, rows)
    np.testing.assert_allclose(found, plain(points[rows], 2), rtol=1e-12)


def test_of_equal_rows_the_first_is_kept():
    points = np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [-0.0, 0.0], [1.0, 2.0 + 1e-15]])
    assert unique_row_indices(points).tolist() == [0, 1, 4]


def test_points_that_are_not_finite_are_refused():
    points = gaussian(20, 3)
    points[3, 1] = np.nan
    with pytest.raises(InputError, match="not finite"):
        nearest_neighbours(points, 2)


@pytest.mark.parametrize("k", [0, 5, 6])
def test_more_neighbours_than_there_are_points_are_refused(k):
    with pytest.raises(InputError, match=r"no \d neighbours"):
        nearest_neighbours(gaussian(5, 3), k)
