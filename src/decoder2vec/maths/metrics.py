"""Correlations and their intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.floating]


def pairwise_cos_sim(left: FloatArray, right: FloatArray) -> FloatArray:
    """Cosine of each row of `left` with the same row of `right`; a zero vector is similar to nothing (0)."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return cast(FloatArray, np.einsum("nd,nd->n", a, b) / np.where(norms > 0, norms, 1.0))


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Rank correlation; 0 where either side is constant and no order exists."""
    return pearson(stats.rankdata(x), stats.rankdata(y))


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Linear correlation; 0 where either side is constant."""
    return float(_correlate_rows(np.asarray(x, np.float64)[None], np.asarray(y, np.float64)[None])[0])


def spearman_interval(
    x: FloatArray, y: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the rank correlation: pairs are drawn with replacement and ranked anew."""
    rng = np.random.default_rng(seed)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    values = []
    for _ in range(0, samples, 100):
        draw = rng.integers(0, len(x), (min(100, samples), len(x)))
        values.append(_correlate_rows(stats.rankdata(x[draw], axis=1), stats.rankdata(y[draw], axis=1)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(values), [tail, 1 - tail])
    return float(low), float(high)


def mean_interval(
    values: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of a mean: values are drawn with replacement."""
    rng = np.random.default_rng(seed)
    values = np.asarray(values, np.float64)
    means = [values[rng.integers(0, len(values), (100, len(values)))].mean(axis=1) for _ in range(0, samples, 100)]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def _correlate_rows(x: FloatArray, y: FloatArray) -> FloatArray:
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    safe = np.where(scale > 0, scale, 1.0)
    return cast(FloatArray, np.where(scale > 0, (x * y).sum(axis=1) / safe, 0.0))


METRICS: dict[str, Callable[[FloatArray, FloatArray], float]] = {"spearman": spearman, "pearson": pearson}
"""Correlations by name."""

Floats = NDArray[np.floating]


def average_precision(scores: Floats, labels: Floats) -> float:
    """Precision at every step in recall, equal scores taken together, as scikit-learn counts it."""
    return float(_precisions(scores, labels, np.ones((1, len(labels))))[0])


def average_precision_interval(
    scores: Floats, labels: Floats, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval: pairs are drawn with replacement, which is to say, each counts as often as it was drawn."""
    rng = np.random.default_rng(seed)
    n = len(labels)
    even = np.full(n, 1 / n)
    values = [_precisions(scores, labels, rng.multinomial(n, even, size=50)) for _ in range(0, samples, 50)]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(values), [tail, 1 - tail])
    return float(low), float(high)


def best_accuracy(scores: Floats, labels: Floats) -> float:
    """Accuracy of the best threshold; to say yes or no to every pair is one too, and equal scores are never split."""
    hits, taken, truth = _counts(scores, labels)
    negatives = len(truth) - truth.sum()
    right = hits + negatives - (taken - hits)  # those taken that are positive, those left that are negative
    return float(max(right.max(), negatives) / len(truth))


def best_f1(scores: Floats, labels: Floats) -> float:
    """F1 of the best threshold."""
    hits, taken, truth = _counts(scores, labels)
    return float((2 * hits / (taken + truth.sum())).max())


def _counts(scores: Floats, labels: Floats) -> tuple[Floats, Floats, Floats]:
    """Positives taken and pairs taken at each threshold, from the highest score down; and the labels in that order."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    truth = np.asarray(labels, np.float64)[order]
    ends = _ends(np.asarray(scores)[order])
    return np.cumsum(truth)[ends], ends + 1.0, truth


def _precisions(scores: Floats, labels: Floats, weights: NDArray[np.number]) -> Floats:
    """Average precision under each row of weights; a draw without a positive scores 0."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    ends = _ends(np.asarray(scores)[order])
    weights = weights[:, order].astype(np.float64)
    taken = np.cumsum(weights, axis=1)[:, ends]
    hits = np.cumsum(weights * np.asarray(labels, np.float64)[order], axis=1)[:, ends]
    steps = np.diff(hits, axis=1, prepend=0.0)
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    total = hits[:, -1]
    return cast(Floats, (steps * precision).sum(axis=1) / np.where(total > 0, total, 1.0))


def _ends(ordered: Floats) -> NDArray[np.intp]:
    """The last place of each run of equal scores."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
