"""Probabilities from scores: a logistic curve fitted on labelled pairs, with the interval that they leave open.

Platt (1999) in the numerically safe form of Lin, Lin and Weng (2007): labels count as slightly less than certain, so
that a few pairs that are perfectly separated do not make the curve a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decoder2vec.errors import InputError

Floats = NDArray[np.float64]

MIN_OF_EACH_LABEL = 5
"""Positive and negative pairs that a fit needs, each."""
_NORMAL_QUANTILE = 1.959964
"""An interval of 95 % has this many standard deviations to each side."""
_MAX_STEPS = 100
_MIN_SPREAD = 1e-12
"""Scores with a lower standard deviation count as equal."""


class Probability(NamedTuple):
    """A probability with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.0f} % ({100 * self.low:.0f}-{100 * self.high:.0f} %)"


@dataclass(frozen=True)
class ProbabilityCurve:
    """The probability that a pair is positive, as a logistic function of its score."""

    intercept: float
    slope: float
    covariance: tuple[float, float, float]
    """Of the estimates: variance of the intercept, covariance, variance of the slope."""
    positives: int
    """Positive pairs that the curve was fitted on."""
    negatives: int

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> ProbabilityCurve:
        """Fit the curve by maximum likelihood.

        Args:
            scores: [pairs] scores, finite.
            labels: [pairs] whether each pair is positive.

        Raises:
            InputError: There are fewer than 5 positive or negative pairs, or all scores are equal.
        """
        x, positive = np.asarray(scores, np.float64), np.asarray(labels, bool)
        positives, negatives = int(positive.sum()), int((~positive).sum())
        if min(positives, negatives) < MIN_OF_EACH_LABEL:
            raise InputError(
                f"Probabilities need {MIN_OF_EACH_LABEL} positive and {MIN_OF_EACH_LABEL} negative pairs or more; "
                f"these are {positives} and {negatives}."
            )
        if x.std() < _MIN_SPREAD:
            raise InputError("All pairs have the same score, so it says nothing about their labels.")
        (intercept, slope), covariance = _fit(x, positive)
        variances = (float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1]))
        return cls(float(intercept), float(slope), variances, positives, negatives)

    def __call__(self, score: float) -> Probability:
        """Return the probability of a pair with this score, and its 95 % interval."""
        values = self.of(score)
        return Probability(*(float(value) for value in values))

    def of(self, scores: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return the probabilities of scores, and the lower and upper ends of their 95 % intervals."""
        x = np.asarray(scores, np.float64)
        variance, covariance, slope_variance = self.covariance
        middle = self.intercept + self.slope * x
        deviation = _NORMAL_QUANTILE * np.sqrt(np.maximum(variance + 2 * x * covariance + x**2 * slope_variance, 0.0))
        return _logistic(middle), _logistic(middle - deviation), _logistic(middle + deviation)

    def score_at(self, probability: float) -> float:
        """Return the score that has this probability."""
        return (math.log(probability / (1 - probability)) - self.intercept) / self.slope

    def to_json(self) -> dict[str, Any]:
        """Return the curve as plain data."""
        return {
            "intercept": self.intercept,
            "slope": self.slope,
            "covariance": list(self.covariance),
            "positives": self.positives,
            "negatives": self.negatives,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ProbabilityCurve:
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError for anything else."""
        variance, covariance, slope_variance = map(float, document["covariance"])
        return cls(
            float(document["intercept"]),
            float(document["slope"]),
            (variance, covariance, slope_variance),
            int(document["positives"]),
            int(document["negatives"]),
        )


class CurveQuality(NamedTuple):
    """How good the probabilities of pairs are that a curve was not fitted on, by cross-validation."""

    auc: float
    """Probability that a positive pair scores higher than a negative one; a property of the scores alone."""
    brier: float
    """Mean squared difference of probability and label; lower is better."""
    base_brier: float
    """The same if every pair had the share of positive pairs as its probability."""
    calibration_error: float
    """Mean difference of probability and share of positives, over ten groups of pairs of similar probability."""


def cross_validate(
    scores: ArrayLike, labels: ArrayLike, *, folds: int = 5, seed: int = 0
) -> tuple[CurveQuality, Floats]:
    """Fit curves on all folds but one, and apply each to the pairs that it has not seen.

    Args:
        scores: [pairs] scores.
        labels: [pairs] whether each pair is positive.
        folds: Parts of equal size, with equal shares of positive pairs.
        seed: Seed of the parts.

    Returns:
        The quality of the probabilities, and the probabilities.
    """
    x, positive = np.asarray(scores, np.float64), np.asarray(labels, bool)
    order = np.random.default_rng(seed).permutation(len(x))
    order = np.concatenate([order[positive[order]], order[~positive[order]]])
    fold = np.empty(len(x), np.intp)
    fold[order] = np.arange(len(x)) % folds
    probabilities = np.empty(len(x))
    for number in range(folds):
        held_out = fold == number
        (intercept, slope), _ = _fit(x[~held_out], positive[~held_out])
        probabilities[held_out] = _logistic(intercept + slope * x[held_out])
    error = sum(abs(mean - share) * count for mean, share, count in reliability(probabilities, positive)) / len(x)
    brier = float(((probabilities - positive) ** 2).mean())
    base_brier = float(positive.mean() * (1 - positive.mean()))
    return CurveQuality(_auc(x, positive), brier, base_brier, error), probabilities


def reliability(values: Floats, labels: ArrayLike, groups: int = 10) -> list[tuple[float, float, int]]:
    """Return (mean value, share of positives, pairs) for groups of pairs of similar probability or score."""
    positive = np.asarray(labels, bool)
    parts = np.array_split(np.argsort(values, kind="stable"), min(groups, len(values)))
    return [(float(values[rows].mean()), float(positive[rows].mean()), len(rows)) for rows in parts]


def _auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """The share of pairs of a positive and a negative that are in order; ties count half."""
    negatives = np.sort(scores[~positive])
    below = np.searchsorted(negatives, scores[positive], "left")
    not_above = np.searchsorted(negatives, scores[positive], "right")
    return float(((below + not_above) / 2).mean() / len(negatives))


def _fit(scores: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Intercept and slope of the curve, and their covariance; computed with standardised scores, which is stable."""
    positives, negatives = positive.sum(), (~positive).sum()
    target = np.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    centre, spread = scores.mean(), max(float(scores.std()), _MIN_SPREAD)
    estimate, covariance = _logistic_regression((scores - centre) / spread, target)
    to_scores = np.array([[1.0, -centre / spread], [0.0, 1.0 / spread]])
    return np.asarray(to_scores @ estimate), np.asarray(to_scores @ covariance @ to_scores.T)


def _logistic_regression(x: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Intercept and slope of highest likelihood by Newton's method with step halving, and their covariance."""
    inputs = np.stack([np.ones_like(x), x], 1)
    estimate = np.array([math.log(target.mean() / (1 - target.mean())), 0.0])
    loss = _log_loss(inputs @ estimate, target)
    for _ in range(_MAX_STEPS):
        probability = _logistic(inputs @ estimate)
        hessian = inputs.T @ (inputs * (probability * (1 - probability))[:, None]) + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, inputs.T @ (probability - target))
        size = 1.0
        while (new_loss := _log_loss(inputs @ (estimate - size * step), target)) > loss and size > 1e-10:
            size /= 2
        estimate, improvement, loss = estimate - size * step, loss - new_loss, new_loss
        if improvement <= 1e-12 * max(1.0, loss):
            break
    probability = _logistic(inputs @ estimate)
    hessian = inputs.T @ (inputs * (probability * (1 - probability))[:, None]) + 1e-12 * np.eye(2)
    return np.asarray(estimate), np.asarray(np.linalg.inv(hessian))


def _log_loss(logits: Floats, target: Floats) -> float:
    return float((np.logaddexp(0.0, logits) - target * logits).sum())


def _logistic(logits: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))  # does not overflow
