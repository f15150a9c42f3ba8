"""Correlations against scipy, average precision and best thresholds against scikit-learn, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from decoder2vec.maths.metrics import (
    average_precision,
    average_precision_interval,
    best_accuracy,
    best_f1,
    mean_interval,
    pairwise_cos_sim,
    pearson,
    spearman,
    spearman_interval,
)
from toys.scipy_bootstrap import bootstrap


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_pairwise_cosines_equal_scipy(rng, dtype):
    left, right = rng.normal(size=(20, 7)).astype(dtype), rng.normal(size=(20, 7)).astype(dtype)
    expected = [1 - distance.cosine(a.astype(float), b.astype(float)) for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(pairwise_cos_sim(left, right), expected, rtol=1e-12, atol=1e-12)


def test_cosine_of_large_float32_values_does_not_overflow():
    large = np.full((1, 4), 1e30, np.float32)
    np.testing.assert_allclose(pairwise_cos_sim(large, large), [1.0])


def test_cosine_with_a_zero_vector_is_zero():
    cosines = pairwise_cos_sim(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 2.0], [0.0, 0.0]]))
    assert cosines.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("levels", [3, 1000])
def test_correlations_equal_scipy_with_and_without_ties(rng, levels):
    x = rng.integers(0, levels, 200).astype(float)
    y = x + rng.normal(size=200) * levels / 4
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_correlations_accept_lists():
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(stats.spearmanr([1, 2, 3, 4], [1, 3, 2, 4]).statistic)


def test_correlation_with_a_constant_is_zero_not_nan(rng):
    constant, varying = np.full(10, 2.5), rng.normal(size=10)
    assert spearman(constant, varying) == 0.0
    assert pearson(varying, constant) == 0.0
    assert spearman_interval(constant, varying, samples=100) == (0.0, 0.0)


def test_spearman_interval_agrees_with_scipys_bootstrap(rng):
    x = rng.normal(size=150)
    y = x + rng.normal(size=150)
    low, high = spearman_interval(x, y, samples=1000)
    reference = bootstrap(
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


def test_spearman_interval_ranks_within_each_sample(rng):
    """Ties that come from drawing with replacement share their rank, as in a loop over scipy's spearmanr."""
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    samples = np.random.default_rng(5).integers(0, 40, (100, 40))
    loop = [stats.spearmanr(x[rows], y[rows]).statistic for rows in samples]
    interval = spearman_interval(x, y, samples=100, seed=5, level=0.9)
    np.testing.assert_allclose(interval, np.quantile(loop, [0.05, 0.95]), atol=1e-12)


def test_spearman_interval_depends_on_seed_and_level(rng):
    x = rng.normal(size=80)
    y = x + rng.normal(size=80)
    wide = spearman_interval(x, y, seed=1)
    assert wide == spearman_interval(x, y, seed=1)
    assert wide != spearman_interval(x, y, seed=2)
    narrow = spearman_interval(x, y, seed=1, level=0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


# --- binary labels ---------------------------------------------------------------------------------------------------


def toy_labels(seed, count=40, levels=None):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    labels[:2] = 0, 1
    scores = labels + rng.normal(size=count) * 1.5
    return (scores if levels is None else np.round(scores * levels)), labels


@pytest.mark.parametrize("levels", [None, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_binary_metrics_equal_scikit_learn(seed, levels):
    scores, labels = toy_labels(seed, levels=levels)
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    predictions = [scores >= threshold for threshold in [*scores, np.inf]]
    assert best_accuracy(scores, labels) == max(accuracy_score(labels, predicted) for predicted in predictions)
    expected = max(f1_score(labels, predicted, zero_division=0) for predicted in predictions)
    assert best_f1(scores, labels) == pytest.approx(expected)


@pytest.mark.parametrize("positives", [10, 30, 45])
def test_constant_score_is_worth_the_share_of_positives(positives):
    labels = np.array([1] * positives + [0] * (50 - positives))
    constant = np.zeros(50)
    assert average_precision(constant, labels) == pytest.approx(positives / 50)
    assert best_accuracy(constant, labels) == max(positives, 50 - positives) / 50


def test_average_precision_interval_equals_a_plain_loop():
    scores, labels = toy_labels(0, levels=2)
    rng = np.random.default_rng(99)
    values = []
    for _ in range(400):
        rows = rng.integers(0, len(labels), len(labels))
        values.append(average_precision_score(labels[rows], scores[rows]))
    interval = average_precision_interval(scores, labels)
    assert interval == pytest.approx((np.percentile(values, 2.5), np.percentile(values, 97.5)), abs=0.03)
    assert interval == average_precision_interval(scores, labels)


def test_mean_interval_agrees_with_the_normal_approximation():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    half = 1.96 * values.std() / np.sqrt(400)
    assert mean_interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert mean_interval([5.0, 5.0]) == (5.0, 5.0)
