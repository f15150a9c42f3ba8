"""The choice among many readings: interval, cross-validated score and tied readings, against loops with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from decoder2vec.analysis.selection import FEW_PAIRS, Selection, measure_selection
from decoder2vec.maths.metrics import spearman_interval


def noisy_readings(n_readings, n_pairs, signal, seed=0):
    """Similarities that follow the human scores with this much signal, which differs by reading, and the scores."""
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=n_pairs).round(1)  # with ties
    return np.outer(np.broadcast_to(signal, n_readings), gold) + rng.normal(size=(n_readings, n_pairs)), gold


def rank_correlation(x, y):
    return stats.spearmanr(x, y).statistic


def best_reading(similarities, gold):
    return int(np.argmax([rank_correlation(row, gold) for row in similarities]))


def test_cross_validated_score_chooses_and_scores_on_different_pairs():
    similarities, gold = noisy_readings(30, 61, 0.4)
    rng = np.random.default_rng(0)
    folds = [rng.permutation(61) % 5 for _ in range(4)]
    scores = []
    for of_pair in folds:
        for fold in range(5):
            held_out = of_pair == fold
            chosen = best_reading(similarities[:, ~held_out], gold[~held_out])
            scores.append(rank_correlation(similarities[chosen][held_out], gold[held_out]))
    result = measure_selection(similarities, gold, best_reading(similarities, gold))
    assert result.cross_validated == pytest.approx(100 * np.mean(scores), abs=0.01)


def test_best_of_random_readings_has_a_cross_validated_score_near_0():
    similarities, gold = noisy_readings(500, 60, 0.0)
    best = best_reading(similarities, gold)
    result = measure_selection(similarities, gold, best)
    assert 100 * rank_correlation(similarities[best], gold) > 30 and abs(result.cross_validated) < 15
    assert len(result.tied) > 50


def test_tied_readings_are_those_with_0_in_the_interval():
    similarities, gold = noisy_readings(12, 80, np.linspace(0, 2, 12))
    best = best_reading(similarities, gold)
    rng, tied = np.random.default_rng(7), []
    draws = [rng.integers(0, 80, 80) for _ in range(300)]
    winner = np.array([rank_correlation(similarities[best][draw], gold[draw]) for draw in draws])
    lows = {}
    for reading, row in enumerate(similarities):
        differences = winner - [rank_correlation(row[draw], gold[draw]) for draw in draws]
        lows[reading] = np.quantile(differences, 0.025)
        if lows[reading] <= 0:
            tied.append(reading)
    clear = {reading for reading, low in lows.items() if abs(low) > 0.03}  # others depend on the drawn samples
    result = measure_selection(similarities, gold, best)
    assert clear & set(result.tied) == clear & set(tied) and len(clear) > 6
    assert best in result.tied and 1 < len(result.tied) < 12


def test_every_reading_is_compared_where_many_are_tied():
    similarities, gold = noisy_readings(150, 30, 0.0)
    similarities = np.concatenate([similarities, similarities + 1])  # the same ranks, so the same scores
    result = measure_selection(similarities, gold, best_reading(similarities, gold))
    tied = set(result.tied)
    assert all((reading + 150 in tied) == (reading in tied) for reading in range(150)) and len(tied) > 64


def test_interval_covers_the_score_and_narrows_with_pairs():
    widths = []
    for n_pairs in (40, 1000):
        similarities, gold = noisy_readings(3, n_pairs, 1.0)
        low, high = measure_selection(similarities, gold, 0).spearman_95
        assert low < 100 * rank_correlation(similarities[0], gold) < high
        assert (low, high) == pytest.approx([100 * end for end in spearman_interval(similarities[0], gold)], abs=0.01)
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


@pytest.mark.parametrize(("n_pairs", "n_readings", "warned"), [(60, 3072, True), (60, 1, False), (200, 3072, False)])
def test_few_pairs_are_warned_of(n_pairs, n_readings, warned):
    selection = Selection(n_pairs, n_readings, (1.0, 2.0), 1.5, (0,))
    expected = (
        f"The best of {n_readings} readings on 60 pairs is largely luck: "
        f"give {FEW_PAIRS} pairs or more, or try fewer readings."
    )
    assert selection.warning() == (expected if warned else "")


def test_summary_has_interval_cross_validated_score_and_tied_readings():
    selection = Selection(60, 3072, (61.04, 82.0), 64.25, tuple(range(40)))
    assert selection.summary() == (
        "best score in [61.0, 82.0] (95 %); cross-validated: 64.2; 40 of 3072 readings are tied with the best"
    )
    assert "cross-validated" not in Selection(3, 9, (1.0, 2.0), None, (0,)).summary()


def test_three_pairs_have_no_cross_validated_score():
    similarities, gold = noisy_readings(4, 3, 1.0)
    assert measure_selection(similarities, gold, 0).cross_validated is None
