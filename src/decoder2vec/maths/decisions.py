"""Yes or no by a score: average precision, its interval, and the best that any threshold can do."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

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
