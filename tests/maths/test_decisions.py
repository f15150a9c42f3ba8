"""Average precision and best thresholds against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from decoder2vec.maths.metrics import (
    average_precision,
    average_precision_interval,
    best_accuracy,
    best_f1,
    mean_interval,
)


def made_up(seed, count=40, levels=None):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    labels[:2] = 0, 1
    scores = labels + rng.normal(size=count) * 1.5
    return (scores if levels is None else np.round(scores * levels)), labels


@pytest.mark.parametrize("levels", [None, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_every_number_is_scikit_learns(seed, levels):
    scores, labels = made_up(seed, levels=levels)
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    decided = [scores >= limit for limit in [*scores, np.inf]]
    assert best_accuracy(scores, labels) == max(accuracy_score(labels, yes) for yes in decided)
    assert best_f1(scores, labels) == pytest.approx(max(f1_score(labels, yes, zero_division=0) for yes in decided))


@pytest.mark.parametrize("positives", [10, 30, 45])
def test_a_constant_score_knows_the_share_of_positives_and_no_more(positives):
    labels = np.array([1] * positives + [0] * (50 - positives))
    constant = np.zeros(50)
    assert average_precision(constant, labels) == pytest.approx(positives / 50)
    assert best_accuracy(constant, labels) == max(positives, 50 - positives) / 50


def test_the_interval_of_average_precision_is_that_of_a_plain_loop():
    scores, labels = made_up(0, levels=2)
    rng = np.random.default_rng(99)
    values = []
    for _ in range(400):
        drawn = rng.integers(0, len(labels), len(labels))
        values.append(average_precision_score(labels[drawn], scores[drawn]))
    found = average_precision_interval(scores, labels)
    assert found == pytest.approx((np.percentile(values, 2.5), np.percentile(values, 97.5)), abs=0.03)
    assert found == average_precision_interval(scores, labels)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    half = 1.96 * values.std() / np.sqrt(400)
    assert mean_interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert mean_interval([5.0, 5.0]) == (5.0, 5.0)
