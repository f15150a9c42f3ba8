"""TwoNN and maximum likelihood equal scikit-dimension's, and find the dimension of what has a known one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours


def two_nn(points, **options):
    return dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances), **options)


def likelihood(points, k=50, **options):
    return dimension.mle_dimension(dimension.local_dimensions(nearest_neighbours(points, k).distances), **options)


def clouds():
    rng = np.random.default_rng(0)
    return {
        "gaussian": rng.standard_normal((500, 8)),
        "wide": rng.standard_normal((700, 40)) @ rng.standard_normal((40, 128)),
        "uneven": rng.standard_normal((301, 5)) ** 3,
    }


# against the field's library


@pytest.mark.parametrize("discard", [0.1, 0.0137, 0.5])
@pytest.mark.parametrize("name", clouds())
def test_two_nn_equals_scikit_dimension(name, discard):
    skdim = pytest.importorskip("skdim")
    points = clouds()[name]
    expected = skdim.id.TwoNN(discard_fraction=discard).fit(points).dimension_
    assert two_nn(points, discard=discard) == pytest.approx(expected, abs=0, rel=1e-9)


@pytest.mark.parametrize("name", clouds())
def test_the_other_convention_equals_that_of_earlier_scikit_dimension(name):
    """Its formula before 0.5, written out: arange(N) / N."""
    points = clouds()[name]
    distances = nearest_neighbours(points, 2).distances
    mu = np.sort(distances[:, 1] / distances[:, 0])
    n, kept = len(mu), int(len(mu) * (1 - 0.1))
    x, y = np.log(mu[:kept]), -np.log(1 - np.arange(n)[:kept] / n)
    expected = np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]
    assert two_nn(points, cdf="(i-1)/N") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("count", "percent"), [(500, 0.66), (1000, 0.33), (5000, 0.07)])
def test_the_two_conventions_differ_by_a_factor_that_the_number_of_points_sets(count, percent):
    logs = np.random.default_rng(0).exponential(1 / 10, count)
    ratio = dimension.two_nn(logs) / dimension.two_nn(logs, cdf="(i-1)/N")
    assert 100 * (ratio - 1) == pytest.approx(percent, abs=0.02)


@pytest.mark.parametrize("name", clouds())
def test_the_closed_form_equals_scikit_dimension(name):
    skdim = pytest.importorskip("skdim")
    points = clouds()[name]
    expected = skdim.id.TwoNN(discard_fraction=0, method="mle").fit(points).dimension_
    found = dimension.two_nn_mle(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("average", "comb"), [("mean", "mean"), ("inverse", "mle")])
@pytest.mark.parametrize("k", [5, 50])
@pytest.mark.parametrize("name", clouds())
def test_maximum_likelihood_equals_scikit_dimension(name, k, average, comb):
    skdim = pytest.importorskip("skdim")
    points = clouds()[name]
    expected = skdim.id.MLE().fit(points, n_neighbors=k, comb=comb).dimension_
    assert likelihood(points, k, average=average) == pytest.approx(expected, rel=1e-9)


# on what has a known dimension, 5,000 points


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
def test_a_known_manifold_has_its_dimension(name):
    points, true, tolerance = manifolds()[name]
    distances = nearest_neighbours(points, 50).distances
    assert dimension.two_nn(dimension.log_distance_ratios(distances)) == pytest.approx(true, rel=tolerance)
    local = dimension.local_dimensions(distances)
    assert dimension.mle_dimension(local, average="inverse") == pytest.approx(true, rel=2.5 * tolerance)


@pytest.mark.parametrize(("true", "expected"), [(10, 9.7), (20, 17.8), (50, 33)])
def test_high_dimensions_are_underestimated_as_they_are_known_to_be(true, expected):
    points = np.zeros((5000, 128))
    points[:, :true] = np.random.default_rng(2).standard_normal((5000, true))
    assert two_nn(points) == pytest.approx(expected, rel=0.06)


# what must not matter


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
def test_the_estimates_do_not_see(change):
    points = clouds()["gaussian"]
    assert two_nn(change(points)) == pytest.approx(two_nn(points), rel=1e-9)
    assert likelihood(change(points)) == pytest.approx(likelihood(points), rel=1e-9)


def test_float32_input_is_as_good_as_float64():
    points = clouds()["wide"]
    assert two_nn(points.astype(np.float32)) == pytest.approx(two_nn(points), rel=1e-3)


# intervals


def test_bootstrap_samples_equal_estimates_of_what_was_drawn():
    local = np.random.default_rng(5).uniform(1, 9, 40)
    times = list(dimension.bootstrap_counts(40, 6, seed=3))
    assert all(each.sum() == 40 for each in times) and len({tuple(each) for each in times}) == 6
    for average in dimension.AVERAGES:
        found = dimension.mle_bootstrap(local, times, average=average)
        expected = [dimension.mle_dimension(np.repeat(local, each), average=average) for each in times]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_parts_are_random_of_the_size_asked_and_the_same_again():
    first, again, other = (list(dimension.random_subsets(101, 0.5, 8, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert all(part.sum() == 50 for part in first)
    assert len({part.tobytes() for part in [*first, *other]}) == 16


def test_the_interval_holds_the_true_dimension_about_as_often_as_it_says():
    """On a torus, which has no edge: 60 clouds of 300 points. To draw ratios with replacement would hold 81 %."""
    inside = 0
    for seed in range(60):
        angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, (300, 2))
        points = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        near = nearest_neighbours(points, 24)
        rows = map(np.flatnonzero, dimension.random_subsets(300, 0.5, 60, seed))
        halves = [dimension.two_nn(dimension.log_distance_ratios(near.distances_within(points, each))) for each in rows]
        low, high = dimension.half_sample_interval(
            dimension.two_nn(dimension.log_distance_ratios(near.distances)), np.array(halves)
        )
        inside += low <= 2 <= high
    assert inside >= 53


# areas


def test_areas_of_three_layers_by_hand():
    curve = [2.0, 6.0, 4.0]  # trapezoids 4 + 5
    assert dimension.normalised_area(curve) == pytest.approx(9 / 3)
    assert dimension.normalised_area(curve, normalisation="unit") == pytest.approx(9 / 2)
    assert math.isnan(dimension.normalised_area([3.0]))
    with pytest.raises(InputError, match="area"):
        dimension.normalised_area(curve, normalisation="papers")


# what cannot be estimated


def test_fewer_than_ten_points_are_refused():
    with pytest.raises(InputError, match="10 different points"):
        dimension.two_nn(np.ones(9))


def test_duplicates_and_infinities_are_refused():
    with pytest.raises(InputError, match="twice"):
        dimension.log_distance_ratios(np.array([[0.0, 1.0]] * 20))
    with pytest.raises(InputError, match="twice"):
        dimension.local_dimensions(np.array([[0.0, 1.0]] * 20))
    with pytest.raises(InputError, match="not finite"):
        dimension.two_nn(np.r_[np.ones(20), np.inf])


def test_a_lattice_has_no_two_nn():
    """Every ratio is 1: there is nothing to fit a line to."""
    assert math.isnan(dimension.two_nn(np.zeros(20)))
    assert math.isnan(dimension.two_nn_mle(np.zeros(20)))


def test_without_discarding_the_largest_ratio_has_no_place_on_the_line():
    logs = np.random.default_rng(6).exponential(0.2, 50)
    x, share = np.sort(logs)[:-1], np.arange(1, 50) / 50
    assert dimension.two_nn(logs, discard=0) == pytest.approx(x @ -np.log(1 - share) / (x @ x))


@pytest.mark.parametrize("options", [{"discard": -0.1}, {"discard": 0.95}, {"cdf": "i/n"}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError):
        dimension.two_nn(np.ones(20), **options)


def test_one_neighbour_or_an_unknown_average_is_refused():
    with pytest.raises(InputError, match="2 neighbours"):
        dimension.local_dimensions(np.ones((20, 1)))
    with pytest.raises(InputError, match="average"):
        dimension.mle_dimension(np.ones(20), average="harmonic")
