"""The paired bootstrap against scipy's, scikit-learn's scores and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from decoder2vec.maths.bootstrap import average_precision_scorer, difference, mean_scorer, resample, spearman_scorer


def made_up(items=120, ties=True, seed=0):
    """Human scores, and the similarities of a good and of a worse encoder."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, items).astype(float) if ties else rng.normal(size=items)
    good, worse = gold + rng.normal(0, 1.0, items), gold + rng.normal(0, 3.0, items)
    return gold, np.stack([good.round(1 if ties else 9), worse])


def draws(items, samples, seed):
    """The same items as `resample` draws, one row a sample."""
    return np.random.default_rng(seed).integers(0, items, (samples, items))


def spearman_of(predicted, gold):
    return stats.spearmanr(predicted, gold).statistic


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize(
    ("ours", "plain", "positive"),
    [
        (spearman_scorer, spearman_of, False),
        (average_precision_scorer, lambda p, g: average_precision_score(g, p), True),
    ],
)
def test_every_sample_is_scored_as_if_its_items_were_written_out(ours, plain, positive, ties):
    gold, predicted = made_up(ties=ties)
    gold = (gold > np.median(gold)).astype(float) if positive else gold
    observed, sampled = resample(ours(predicted, gold), len(gold), samples=60, seed=3)
    assert observed == pytest.approx([plain(row, gold) for row in predicted], abs=1e-12)
    expected = [[plain(row[draw], gold[draw]) for draw in draws(len(gold), 60, 3)] for row in predicted]
    np.testing.assert_allclose(sampled, expected, atol=1e-12)


def test_means_are_means_of_what_was_drawn():
    values = np.random.default_rng(1).uniform(size=(3, 40))
    observed, sampled = resample(mean_scorer(values), 40, samples=250, seed=9)
    rng = np.random.default_rng(9)
    rows = np.concatenate([rng.integers(0, 40, (count, 40)) for count in (100, 100, 50)])
    np.testing.assert_allclose(observed, values.mean(axis=1))
    np.testing.assert_allclose(sampled, values[:, rows].mean(axis=2))


def test_the_interval_is_scipys_paired_bootstrap():
    gold, predicted = made_up()
    observed, sampled = resample(spearman_scorer(predicted, gold), len(gold), samples=1000, seed=5)
    found = difference(observed[0] - observed[1], sampled[0] - sampled[1])

    def gap(good, worse, truth):
        return spearman_of(good, truth) - spearman_of(worse, truth)

    scipys = stats.bootstrap(
        (*predicted, gold),
        gap,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(5),
        batch=100,
    )
    interval = scipys.confidence_interval
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert found.value == pytest.approx(gap(*predicted, gold))
    assert found.shown and found.p < 0.01


def test_p_counts_the_samples_on_the_other_side():
    found = difference(0.5, np.array([-1.0] * 3 + [0.0] + [1.0] * 95))
    assert found.p == pytest.approx(2 * 5 / 100)  # three below, one on the line, and one for the data itself


def test_equal_encoders_differ_by_nothing():
    gold, predicted = made_up()
    observed, sampled = resample(spearman_scorer(predicted[[0, 0]], gold), len(gold))
    found = difference(observed[0] - observed[1], sampled[0] - sampled[1])
    assert (found.value, found.low, found.high, found.p, found.shown) == (0, 0, 0, 1.0, False)


def test_a_difference_of_nothing_is_found_in_about_one_case_of_twenty():
    """Two encoders of the same quality: the interval leaves 0 out about 5 times in 100."""
    rng = np.random.default_rng(0)
    shown = 0
    for seed in range(300):
        values = rng.normal(size=(2, 80))
        observed, sampled = resample(mean_scorer(values), 80, samples=400, seed=seed)
        shown += difference(observed[0] - observed[1], sampled[0] - sampled[1]).shown
    assert 4 <= shown <= 30


@pytest.mark.parametrize("constant", ["predicted", "gold", "both"])
def test_constant_scores_correlate_with_nothing(constant):
    gold, predicted = made_up(items=20)
    gold = gold * (constant == "predicted")
    predicted = predicted * (constant == "gold")
    observed, sampled = resample(spearman_scorer(predicted, gold), 20, samples=30)
    assert not observed.any() and not sampled.any()


def test_no_positive_item_is_a_precision_of_nothing():
    _, predicted = made_up(items=20)
    observed, sampled = resample(average_precision_scorer(predicted, np.zeros(20)), 20, samples=30)
    assert not observed.any() and not sampled.any()


def test_one_item_cannot_vary():
    observed, sampled = resample(mean_scorer(np.array([[0.5], [0.25]])), 1, samples=10)
    assert observed.tolist() == [0.5, 0.25] and np.ptp(sampled, axis=1).tolist() == [0.0, 0.0]
