"""Probabilities from scores, against scikit-learn and against simulations with known probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from decoder2vec.errors import InputError
from decoder2vec.maths.probability import Probability, ProbabilityCurve, cross_validate, reliability


def simulate(count, seed=0, intercept=-3.0, slope=8.0):
    """Scores, and labels that are positive with the probability of a known curve."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-0.1, 0.9, count)
    return scores, rng.uniform(size=count) < 1 / (1 + np.exp(-intercept - slope * scores))


def test_curve_is_the_logistic_regression_of_scikit_learn():
    scores, labels = simulate(500)
    positives, negatives = labels.sum(), (~labels).sum()
    target = np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    model = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000)  # every pair as both labels, weighted
    model.fit(np.tile(scores, 2)[:, None], np.repeat([1, 0], 500), np.concatenate([target, 1 - target]))
    curve = ProbabilityCurve.fit(scores, labels)
    assert curve.slope == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert curve.intercept == pytest.approx(model.intercept_[0], rel=1e-4)
    assert curve.score_at(curve(0.3).value) == pytest.approx(0.3)


@pytest.mark.parametrize("score", [0.1, 0.375, 0.7])
def test_interval_has_the_true_probability_in_95_of_100_cases(score):
    truth = 1 / (1 + np.exp(3.0 - 8.0 * score))
    curves = [ProbabilityCurve.fit(*simulate(200, seed)) for seed in range(400)]
    covered = np.mean([low <= truth <= high for _, low, high in (curve(score) for curve in curves)])
    assert 0.92 <= covered <= 0.98


def test_interval_narrows_with_more_pairs():
    few, many = (ProbabilityCurve.fit(*simulate(count))(0.5) for count in (50, 5000))
    assert few.low < few.value < few.high
    assert many.high - many.low < (few.high - few.low) / 5


def test_few_separated_pairs_are_not_certain():
    scores = np.array([0.1] * 5 + [0.9] * 5)
    curve = ProbabilityCurve.fit(scores, scores > 0.5)
    assert 0.8 < curve(0.9).value < 0.95
    assert curve(0.9).low < 0.75


def test_order_of_scores_is_kept():
    scores, labels = simulate(300)
    middle, low, high = ProbabilityCurve.fit(scores, labels).of(np.linspace(-1, 2, 50))
    assert (np.diff(middle) > 0).all()
    assert ((low <= middle) & (middle <= high)).all()


def test_quality_is_that_of_scikit_learn():
    scores, labels = simulate(1000)
    scores = np.round(scores, 2)  # ties
    quality, probabilities = cross_validate(scores, labels)
    assert quality.auc == pytest.approx(roc_auc_score(labels, scores))
    assert quality.brier == pytest.approx(brier_score_loss(labels, probabilities))
    assert quality.brier < quality.base_brier == pytest.approx(brier_score_loss(labels, np.full(1000, labels.mean())))
    assert quality.calibration_error < 0.05


def test_scores_without_meaning_get_the_base_rate():
    _, labels = simulate(2000)
    quality, probabilities = cross_validate(np.random.default_rng(1).normal(size=2000), labels)
    assert quality.auc == pytest.approx(0.5, abs=0.05)
    assert np.abs(probabilities - labels.mean()).max() < 0.1


def test_reliability_groups_all_pairs():
    groups = reliability(np.array([0.9, 0.1, 0.2, 0.8]), [1, 0, 0, 1], groups=2)
    assert [count for _, _, count in groups] == [2, 2]
    assert np.allclose([group[:2] for group in groups], [(0.15, 0), (0.85, 1)])


def test_curve_survives_json():
    curve = ProbabilityCurve.fit(*simulate(100))
    assert ProbabilityCurve.from_json(curve.to_json()) == curve


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.arange(20.0), [1] * 4 + [0] * 16, "4 and 16"),
        (np.ones(20), [1] * 10 + [0] * 10, "same score"),
    ],
)
def test_too_little_to_fit_is_said(scores, labels, message):
    with pytest.raises(InputError, match=message):
        ProbabilityCurve.fit(scores, labels)


def test_probability_reads_as_percentages():
    assert str(Probability(0.834, 0.79, 0.871)) == "83 % (79-87 %)"
