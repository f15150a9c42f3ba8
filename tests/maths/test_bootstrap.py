"""The paired bootstrap against scipy's bootstrap, scikit-learn's metrics and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from decoder2vec.maths.bootstrap import average_precision_scorer, difference, mean_scorer, resample, spearman_scorer
from toys.scipy_bootstrap import bootstrap


def toy(items=120, ties=True, seed=0):
    """Human scores, and the similarities of a good and of a worse encoder."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, items).astype(float) if ties else rng.normal(size=items)
    good, worse = gold + rng.normal(0, 1.0, items), gold + rng.normal(0, 3.0, items)
    return gold, np.stack([good.round(1 if ties else 9), worse])


def sample_rows(items, samples, seed):
    """[samples, items] the items that `resample` draws."""
    return np.random.default_rng(seed).integers(0, items, (samples, items))


def scipy_spearman(predicted, gold):
    return stats.spearmanr(predicted, gold).statistic


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize(
    ("scorer", "reference", "binary"),
    [
        (spearman_scorer, scipy_spearman, False),
        (average_precision_scorer, lambda p, g: average_precision_score(g, p), True),
    ],
)
def test_sample_scores_equal_scores_of_the_drawn_items(scorer, reference, binary, ties):
    gold, predicted = toy(ties=ties)
    gold = (gold > np.median(gold)).astype(float) if binary else gold
    observed, sampled = resample(scorer(predicted, gold), len(gold), samples=60, seed=3)
    assert observed == pytest.approx([reference(row, gold) for row in predicted], abs=1e-12)
    expected = [[reference(row[rows], gold[rows]) for rows in sample_rows(len(gold), 60, 3)] for row in predicted]
    np.testing.assert_allclose(sampled, expected, atol=1e-12)


def test_mean_scores_equal_means_of_the_drawn_items():
    values = np.random.default_rng(1).uniform(size=(3, 40))
    observed, sampled = resample(mean_scorer(values), 40, samples=250, seed=9)
    rng = np.random.default_rng(9)
    rows = np.concatenate([rng.integers(0, 40, (count, 40)) for count in (100, 100, 50)])
    np.testing.assert_allclose(observed, values.mean(axis=1))
    np.testing.assert_allclose(sampled, values[:, rows].mean(axis=2))


def test_interval_equals_scipys_paired_bootstrap():
    gold, predicted = toy()
    observed, sampled = resample(spearman_scorer(predicted, gold), len(gold), samples=1000, seed=5)
    result = difference(observed[0] - observed[1], sampled[0] - sampled[1])

    def gap(good, worse, truth):
        return scipy_spearman(good, truth) - scipy_spearman(worse, truth)

    reference = bootstrap(
        (*predicted, gold),
        gap,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(5),
        batch=100,
    )
    interval = reference.confidence_interval
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert result.value == pytest.approx(gap(*predicted, gold))
    assert result.significant and result.p < 0.01


def test_p_value_counts_samples_of_the_opposite_sign():
    result = difference(0.5, np.array([-1.0] * 3 + [0.0] + [1.0] * 95))
    assert result.p == pytest.approx(2 * 5 / 100)  # three below 0, one equal to 0, and one for the data itself


def test_equal_encoders_have_a_difference_of_zero():
    gold, predicted = toy()
    observed, sampled = resample(spearman_scorer(predicted[[0, 0]], gold), len(gold))
    result = difference(observed[0] - observed[1], sampled[0] - sampled[1])
    assert (result.value, result.low, result.high, result.p, result.significant) == (0, 0, 0, 1.0, False)


def test_false_positive_rate_is_about_five_percent():
    """Two encoders of the same quality: the interval excludes 0 in about 5 cases of 100."""
    rng = np.random.default_rng(0)
    significant = 0
    for seed in range(300):
        values = rng.normal(size=(2, 80))
        observed, sampled = resample(mean_scorer(values), 80, samples=400, seed=seed)
        significant += difference(observed[0] - observed[1], sampled[0] - sampled[1]).significant
    assert 4 <= significant <= 30


@pytest.mark.parametrize("constant", ["predicted", "gold", "both"])
def test_correlation_with_constant_scores_is_zero(constant):
    gold, predicted = toy(items=20)
    gold = gold * (constant == "predicted")
    predicted = predicted * (constant == "gold")
    observed, sampled = resample(spearman_scorer(predicted, gold), 20, samples=30)
    assert not observed.any() and not sampled.any()


def test_average_precision_without_positives_is_zero():
    _, predicted = toy(items=20)
    observed, sampled = resample(average_precision_scorer(predicted, np.zeros(20)), 20, samples=30)
    assert not observed.any() and not sampled.any()


def test_one_item_gives_no_variance():
    observed, sampled = resample(mean_scorer(np.array([[0.5], [0.25]])), 1, samples=10)
    assert observed.tolist() == [0.5, 0.25] and np.ptp(sampled, axis=1).tolist() == [0.0, 0.0]
