"""Quality of predicted scores: correlations with human scores, average precision, best thresholds, their intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from decoder2vec.maths.bootstrap import resample, spearman_scorer

FloatArray = NDArray[np.floating]


# --- correlations ----------------------------------------------------------------------------------------------------


def pairwise_cos_sim(left: FloatArray, right: FloatArray) -> FloatArray:
    """[n] cosine of each row of `left` with the same row of `right`; the cosine with a zero vector is 0."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return cast(FloatArray, np.einsum("nd,nd->n", a, b) / np.where(norms > 0, norms, 1.0))


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Rank correlation; 0 if `x` or `y` is constant."""
    return pearson(stats.rankdata(x), stats.rankdata(y))


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Linear correlation; 0 if `x` or `y` is constant."""
    return float(_correlate_rows(np.asarray(x, np.float64)[None], np.asarray(y, np.float64)[None])[0])


METRICS: dict[str, Callable[[FloatArray, FloatArray], float]] = {"spearman": spearman, "pearson": pearson}
"""Correlations by name."""


def spearman_interval(
    x: FloatArray, y: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the rank correlation: pairs are drawn with replacement and ranked within each sample."""
    scorer = spearman_scorer(np.asarray(x, np.float64)[None], np.asarray(y, np.float64))
    _, values = resample(scorer, len(x), samples=samples, seed=seed)
    return _percentile_interval(values[0], level)


def mean_interval(
    values: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of a mean: values are drawn with replacement."""
    rng = np.random.default_rng(seed)
    values = np.asarray(values, np.float64)
    means = [values[rng.integers(0, len(values), (100, len(values)))].mean(axis=1) for _ in range(0, samples, 100)]
    return _percentile_interval(np.concatenate(means), level)


# --- binary labels ---------------------------------------------------------------------------------------------------


def average_precision(scores: FloatArray, labels: FloatArray) -> float:
    """Average precision of scores for labels of 0 and 1; equal scores enter together, as in scikit-learn."""
    return float(_average_precisions(scores, labels, np.ones((1, len(labels))))[0])


def average_precision_interval(
    scores: FloatArray, labels: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the average precision; a sample weighs each pair by how often it was drawn."""
    rng = np.random.default_rng(seed)
    n = len(labels)
    uniform = np.full(n, 1 / n)
    values = [_average_precisions(scores, labels, rng.multinomial(n, uniform, size=50)) for _ in range(0, samples, 50)]
    return _percentile_interval(np.concatenate(values), level)


def best_accuracy(scores: FloatArray, labels: FloatArray) -> float:
    """Accuracy at the best threshold.

    Predicting the same label for every pair is one of the thresholds; equal scores are never split.
    """
    true_positives, predicted_positives, ordered_labels = _threshold_counts(scores, labels)
    negatives = len(ordered_labels) - ordered_labels.sum()
    correct = true_positives + negatives - (predicted_positives - true_positives)
    return float(max(correct.max(), negatives) / len(ordered_labels))


def best_f1(scores: FloatArray, labels: FloatArray) -> float:
    """F1 at the best threshold."""
    true_positives, predicted_positives, ordered_labels = _threshold_counts(scores, labels)
    return float((2 * true_positives / (predicted_positives + ordered_labels.sum())).max())


def _threshold_counts(scores: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """True positives and predicted positives at each threshold, highest first; and the labels in that order."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    ordered_labels = np.asarray(labels, np.float64)[order]
    ends = _tie_ends(np.asarray(scores)[order])
    return np.cumsum(ordered_labels)[ends], ends + 1.0, ordered_labels


def _average_precisions(scores: FloatArray, labels: FloatArray, weights: NDArray[np.number]) -> FloatArray:
    """[samples] average precision under each row of [samples, items] weights; 0 for a sample without a positive."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    ends = _tie_ends(np.asarray(scores)[order])
    weights = weights[:, order].astype(np.float64)
    predicted_positives = np.cumsum(weights, axis=1)[:, ends]
    true_positives = np.cumsum(weights * np.asarray(labels, np.float64)[order], axis=1)[:, ends]
    steps = np.diff(true_positives, axis=1, prepend=0.0)
    precision = np.divide(
        true_positives, predicted_positives, out=np.zeros_like(true_positives), where=predicted_positives > 0
    )
    positives = true_positives[:, -1]
    return cast(FloatArray, (steps * precision).sum(axis=1) / np.where(positives > 0, positives, 1.0))


def _tie_ends(ordered: FloatArray) -> NDArray[np.intp]:
    """Index of the last element of each run of equal scores."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))


def _correlate_rows(x: FloatArray, y: FloatArray) -> FloatArray:
    """[rows] Pearson correlation of each row of `x` with the same row of `y`; 0 where one is constant."""
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    safe = np.where(scale > 0, scale, 1.0)
    return cast(FloatArray, np.where(scale > 0, (x * y).sum(axis=1) / safe, 0.0))


def _percentile_interval(values: FloatArray, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
