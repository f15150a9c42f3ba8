"""Estimates against scikit-dimension and on manifolds of known dimension; nearest neighbours against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from decoder2vec.errors import InputError
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours, unique_row_indices


def two_nn(points, **options):
    return dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances), **options)


def mle(points, k=50, **options):
    return dimension.mle_dimension(dimension.local_dimensions(nearest_neighbours(points, k).distances), **options)


def point_sets():
    rng = np.random.default_rng(0)
    return {
        "gaussian": rng.standard_normal((500, 8)),
        "wide": rng.standard_normal((700, 40)) @ rng.standard_normal((40, 128)),
        "uneven": rng.standard_normal((301, 5)) ** 3,
    }


# --- against scikit-dimension ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("discard", [0.1, 0.0137, 0.5])
@pytest.mark.parametrize("name", point_sets())
def test_two_nn_equals_scikit_dimension(name, discard):
    skdim = pytest.importorskip("skdim")
    points = point_sets()[name]
    expected = skdim.id.TwoNN(discard_fraction=discard).fit(points).dimension_
    assert two_nn(points, discard=discard) == pytest.approx(expected, abs=0, rel=1e-9)


@pytest.mark.parametrize("name", point_sets())
def test_second_cdf_equals_earlier_scikit_dimension(name):
    """Its formula before 0.5, written out: arange(N) / N."""
    points = point_sets()[name]
    distances = nearest_neighbours(points, 2).distances
    ratios = np.sort(distances[:, 1] / distances[:, 0])
    n, kept = len(ratios), int(len(ratios) * (1 - 0.1))
    x, y = np.log(ratios[:kept]), -np.log(1 - np.arange(n)[:kept] / n)
    expected = np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]
    assert two_nn(points, cdf="(i-1)/N") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("count", "percent"), [(500, 0.66), (1000, 0.33), (5000, 0.07)])
def test_cdf_conventions_differ_by_a_known_factor(count, percent):
    log_ratios = np.random.default_rng(0).exponential(1 / 10, count)
    ratio = dimension.two_nn(log_ratios) / dimension.two_nn(log_ratios, cdf="(i-1)/N")
    assert 100 * (ratio - 1) == pytest.approx(percent, abs=0.02)


@pytest.mark.parametrize("name", point_sets())
def test_two_nn_mle_equals_scikit_dimension(name):
    skdim = pytest.importorskip("skdim")
    points = point_sets()[name]
    expected = skdim.id.TwoNN(discard_fraction=0, method="mle").fit(points).dimension_
    estimate = dimension.two_nn_mle(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances))
    assert estimate == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("average", "comb"), [("mean", "mean"), ("inverse", "mle")])
@pytest.mark.parametrize("k", [5, 50])
@pytest.mark.parametrize("name", point_sets())
def test_maximum_likelihood_equals_scikit_dimension(name, k, average, comb):
    skdim = pytest.importorskip("skdim")
    points = point_sets()[name]
    expected = skdim.id.MLE().fit(points, n_neighbors=k, comb=comb).dimension_
    assert mle(points, k, average=average) == pytest.approx(expected, rel=1e-9)


# --- on 5,000 points of known dimension ------------------------------------------------------------------------------


def embedded(points, axes=64):
    """Rotated into more axes."""
    rng = np.random.default_rng(9)
    return points @ np.linalg.qr(rng.standard_normal((axes, points.shape[1])))[0].T


def manifolds():
    rng = np.random.default_rng(1)
    n = 5000
    turn = 1.5 * np.pi * (1 + 2 * rng.random(n))
    roll = np.stack([turn * np.cos(turn), 21 * rng.random(n), turn * np.sin(turn)], axis=1)
    sphere = rng.standard_normal((n, 6))
    plane = embedded(rng.standard_normal((n, 5)))
    return {
        "line": (embedded(rng.random((n, 1))), 1, 0.03),
        "cube": (embedded(rng.random((n, 5))), 5, 0.07),
        "swiss roll": (roll, 2, 0.05),
        "sphere": (sphere / np.linalg.norm(sphere, axis=1, keepdims=True), 5, 0.05),
        "subspace": (plane, 5, 0.05),
        "subspace and a little noise": (plane + 1e-4 * rng.standard_normal(plane.shape), 5, 0.05),
    }


@pytest.mark.parametrize("name", manifolds())
def test_dimension_of_known_manifolds_is_found(name):
    points, true_dimension, tolerance = manifolds()[name]
    distances = nearest_neighbours(points, 50).distances
    assert dimension.two_nn(dimension.log_distance_ratios(distances)) == pytest.approx(true_dimension, rel=tolerance)
    local = dimension.local_dimensions(distances)
    assert dimension.mle_dimension(local, average="inverse") == pytest.approx(true_dimension, rel=2.5 * tolerance)


@pytest.mark.parametrize(("true_dimension", "expected"), [(10, 9.7), (20, 17.8), (50, 33)])
def test_high_dimensions_are_underestimated_as_published(true_dimension, expected):
    points = np.zeros((5000, 128))
    points[:, :true_dimension] = np.random.default_rng(2).standard_normal((5000, true_dimension))
    assert two_nn(points) == pytest.approx(expected, rel=0.06)


# --- invariances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x @ np.linalg.qr(np.random.default_rng(3).standard_normal((8, 8)))[0],
        lambda x: 1e6 * x,
        lambda x: x + 100,
        lambda x: x[np.random.default_rng(4).permutation(len(x))],
    ],
    ids=["rotation", "scale", "translation", "order"],
)
def test_estimates_are_invariant_under(change):
    points = point_sets()["gaussian"]
    assert two_nn(change(points)) == pytest.approx(two_nn(points), rel=1e-9)
    assert mle(change(points)) == pytest.approx(mle(points), rel=1e-9)


def test_float32_input_equals_float64():
    points = point_sets()["wide"]
    assert two_nn(points.astype(np.float32)) == pytest.approx(two_nn(points), rel=1e-3)


# --- intervals -------------------------------------------------------------------------------------------------------


def test_bootstrap_estimates_equal_those_of_drawn_points():
    local = np.random.default_rng(5).uniform(1, 9, 40)
    samples = list(dimension.bootstrap_counts(40, 6, seed=3))
    assert all(counts.sum() == 40 for counts in samples) and len({tuple(counts) for counts in samples}) == 6
    for average in dimension.AVERAGES:
        estimates = dimension.mle_bootstrap(local, samples, average=average)
        expected = [dimension.mle_dimension(np.repeat(local, counts), average=average) for counts in samples]
        np.testing.assert_allclose(estimates, expected, rtol=1e-12)


def test_random_subsets_have_the_size_and_are_reproducible():
    first, again, other_seed = (list(dimension.random_subsets(101, 0.5, 8, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert all(members.sum() == 50 for members in first)
    assert len({members.tobytes() for members in [*first, *other_seed]}) == 16


def test_interval_contains_the_true_dimension_95_percent():
    """On 60 samples of 300 points of a torus, which has no edge. A bootstrap of the ratios would reach 81 %."""
    covered = 0
    for seed in range(60):
        angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, (300, 2))
        points = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        neighbours = nearest_neighbours(points, 24)
        subsets = map(np.flatnonzero, dimension.random_subsets(300, 0.5, 60, seed))
        halves = [
            dimension.two_nn(dimension.log_distance_ratios(neighbours.distances_within(points, rows)))
            for rows in subsets
        ]
        low, high = dimension.half_sample_interval(
            dimension.two_nn(dimension.log_distance_ratios(neighbours.distances)), np.array(halves)
        )
        covered += low <= 2 <= high
    assert covered >= 53


# --- areas -----------------------------------------------------------------------------------------------------------


def test_areas_of_three_layers_by_hand():
    curve = [2.0, 6.0, 4.0]  # trapezoids 4 + 5
    assert dimension.normalised_area(curve) == pytest.approx(9 / 3)
    assert dimension.normalised_area(curve, normalisation="unit") == pytest.approx(9 / 2)
    assert math.isnan(dimension.normalised_area([3.0]))
    with pytest.raises(InputError, match="area"):
        dimension.normalised_area(curve, normalisation="papers")


# --- degenerate and invalid input ------------------------------------------------------------------------------------


def test_two_nn_of_fewer_than_ten_points_is_refused():
    with pytest.raises(InputError, match="10 different points"):
        dimension.two_nn(np.ones(9))


def test_duplicates_and_infinities_are_refused():
    with pytest.raises(InputError, match="twice"):
        dimension.log_distance_ratios(np.array([[0.0, 1.0]] * 20))
    with pytest.raises(InputError, match="twice"):
        dimension.local_dimensions(np.array([[0.0, 1.0]] * 20))
    with pytest.raises(InputError, match="not finite"):
        dimension.two_nn(np.r_[np.ones(20), np.inf])


def test_two_nn_of_a_lattice_is_nan():
    """Every ratio is 1, so there is no line to fit."""
    assert math.isnan(dimension.two_nn(np.zeros(20)))
    assert math.isnan(dimension.two_nn_mle(np.zeros(20)))


def test_largest_ratio_is_left_out_without_discarding():
    log_ratios = np.random.default_rng(6).exponential(0.2, 50)
    x, share = np.sort(log_ratios)[:-1], np.arange(1, 50) / 50
    assert dimension.two_nn(log_ratios, discard=0) == pytest.approx(x @ -np.log(1 - share) / (x @ x))


@pytest.mark.parametrize("options", [{"discard": -0.1}, {"discard": 0.95}, {"cdf": "i/n"}])
def test_invalid_two_nn_options_are_refused(options):
    with pytest.raises(InputError):
        dimension.two_nn(np.ones(20), **options)


def test_one_neighbour_or_an_unknown_average_is_refused():
    with pytest.raises(InputError, match="2 neighbours"):
        dimension.local_dimensions(np.ones((20, 1)))
    with pytest.raises(InputError, match="average"):
        dimension.mle_dimension(np.ones(20), average="harmonic")


# --- nearest neighbours ----------------------------------------------------------------------------------------------


def neighbour_distances_by_scipy(points, k):
    """All pairs, by differences in float64."""
    distances = cdist(points.astype(np.float64), points.astype(np.float64))
    np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, :k]


def gaussian(rows=400, columns=50):
    return np.random.default_rng(0).standard_normal((rows, columns))


POINTS = {
    "plain": gaussian(),
    "far from the origin": gaussian() * 1e-3 + 1000,
    "one huge dimension": np.c_[gaussian(), 1e5 * gaussian(400, 1)],
    "float32 far away": (gaussian() * 1e-2 + 1000).astype(np.float32),
    "enormous": gaussian() * 1e30,
    "tiny": gaussian() * 1e-30,
    "all equally far apart": np.eye(60),
    "lattice": np.random.default_rng(1).permutation(np.stack(np.meshgrid(*[np.arange(6.0)] * 3), -1).reshape(-1, 3)),
    "close pairs": np.repeat(gaussian(200), 2, axis=0) + 1e-9 * gaussian(),
    "fewer points than candidates": gaussian(9),
}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_distances_equal_a_search_over_all_pairs(name, k):
    result = nearest_neighbours(POINTS[name], k)
    np.testing.assert_allclose(result.distances, neighbour_distances_by_scipy(POINTS[name], k), rtol=1e-12)


def test_indices_match_distances_and_exclude_the_point():
    points = POINTS["plain"]
    result = nearest_neighbours(points, 5)
    distances = np.linalg.norm(points[result.indices] - points[:, None], axis=2)
    np.testing.assert_allclose(distances, result.distances, rtol=1e-12)
    assert (result.indices != np.arange(len(points))[:, None]).all()


@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_chunk_size_does_not_change_the_result(chunk):
    result, expected = nearest_neighbours(POINTS["plain"], 3, chunk=chunk), nearest_neighbours(POINTS["plain"], 3)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_allclose(result.distances, expected.distances, rtol=1e-14)


def test_neighbour_missed_by_the_product_is_found_again(monkeypatch):
    """The float32 candidates are replaced by wrong ones; the error bound must detect it."""
    points = POINTS["plain"]
    original = dimension._DistanceProduct.propose

    def wrong_candidates(self, rows, count):
        candidates, farthest = original(self, rows, count)
        if self.points.dtype != torch.float32:
            return candidates, farthest
        # far points instead of the nearest: the worst that a float32 product can return
        return (candidates + 1 + rows[:, None]) % len(points), farthest * 0

    monkeypatch.setattr(dimension._DistanceProduct, "propose", wrong_candidates)
    monkeypatch.setattr(dimension, "_EXTRA_CANDIDATES", 1)
    np.testing.assert_allclose(
        nearest_neighbours(points, 2).distances, neighbour_distances_by_scipy(points, 2), rtol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["plain", "far from the origin", "one huge dimension", "close pairs"])
def test_error_bound_of_the_product_holds(dtype, name):
    points = dimension._to_float64_tensor(POINTS[name])
    product = dimension._DistanceProduct(points, getattr(torch, dtype))
    rows = torch.arange(len(points))
    shifted = torch.addmm(product.squares, product.points, product.points.T, alpha=-2).double()
    approximate = (shifted + product.norms.square()[:, None]) * product.unit**2
    true = cdist(points, points)
    bound = product.error(rows[:, None], torch.from_numpy(true))
    assert (np.abs(approximate - true**2) <= bound).all()


@pytest.mark.parametrize("columns", [3, 50])
@pytest.mark.parametrize("k", [4, 50])
def test_distances_within_a_subset_equal_a_search_in_it(k, columns):
    """With few known neighbours, many points have none in the subset and are searched again."""
    points = gaussian(300, columns)
    rows = np.sort(np.random.default_rng(2).choice(300, 75, replace=False))
    result = nearest_neighbours(points, k).distances_within(points, rows)
    np.testing.assert_allclose(result, neighbour_distances_by_scipy(points[rows], 2), rtol=1e-12)


def test_unique_row_indices_keep_the_first_of_equal_rows():
    points = np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [-0.0, 0.0], [1.0, 2.0 + 1e-15]])
    assert unique_row_indices(points).tolist() == [0, 1, 4]


def test_neighbours_of_points_that_are_not_finite_are_refused():
    points = gaussian(20, 3)
    points[3, 1] = np.nan
    with pytest.raises(InputError, match="not finite"):
        nearest_neighbours(points, 2)


@pytest.mark.parametrize("k", [0, 5, 6])
def test_more_neighbours_than_points_are_refused(k):
    with pytest.raises(InputError, match=r"no \d neighbours"):
        nearest_neighbours(gaussian(5, 3), k)
