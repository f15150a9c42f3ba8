"""Correlations and their intervals against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance

from decoder2vec.maths.metrics import pairwise_cos_sim, pearson, spearman, spearman_interval


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_cosines_equal_scipy_row_by_row(rng, dtype):
    left, right = rng.normal(size=(20, 7)).astype(dtype), rng.normal(size=(20, 7)).astype(dtype)
    expected = [1 - distance.cosine(a.astype(float), b.astype(float)) for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(pairwise_cos_sim(left, right), expected, rtol=1e-12, atol=1e-12)


def test_cosine_of_large_float32_vectors_does_not_overflow():
    large = np.full((1, 4), 1e30, np.float32)
    np.testing.assert_allclose(pairwise_cos_sim(large, large), [1.0])


def test_cosine_with_a_zero_vector_is_zero():
    found = pairwise_cos_sim(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 2.0], [0.0, 0.0]]))
    assert found.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("levels", [3, 1000])
def test_correlations_equal_scipy_with_and_without_ties(rng, levels):
    x = rng.integers(0, levels, 200).astype(float)
    y = x + rng.normal(size=200) * levels / 4
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_lists_are_as_good_as_arrays():
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(stats.spearmanr([1, 2, 3, 4], [1, 3, 2, 4]).statistic)


def test_a_constant_side_correlates_with_nothing_and_gives_no_nan(rng):
    constant, other = np.full(10, 2.5), rng.normal(size=10)
    assert spearman(constant, other) == 0.0
    assert pearson(other, constant) == 0.0
    assert spearman_interval(constant, other, samples=100) == (0.0, 0.0)


def test_the_interval_agrees_with_scipys_bootstrap(rng):
    x = rng.normal(size=150)
    y = x + rng.normal(size=150)
    low, high = spearman_interval(x, y, samples=1000)
    reference = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert low == pytest.approx(reference.low, abs=0.02)
    assert high == pytest.approx(reference.high, abs=0.02)
    assert low < stats.spearmanr(x, y).statistic < high


def test_the_interval_ranks_each_draw_anew(rng):
    """Ties that a draw with replacement makes share their rank, as in a loop over scipy's spearmanr."""
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    draws = np.random.default_rng(5).integers(0, 40, (100, 40))
    loop = [stats.spearmanr(x[draw], y[draw]).statistic for draw in draws]
    found = spearman_interval(x, y, samples=100, seed=5, level=0.9)
    np.testing.assert_allclose(found, np.quantile(loop, [0.05, 0.95]), atol=1e-12)


def test_the_interval_is_the_same_for_the_same_seed_and_narrower_at_a_lower_level(rng):
    x = rng.normal(size=80)
    y = x + rng.normal(size=80)
    wide = spearman_interval(x, y, seed=1)
    assert wide == spearman_interval(x, y, seed=1)
    assert wide != spearman_interval(x, y, seed=2)
    narrow = spearman_interval(x, y, seed=1, level=0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
