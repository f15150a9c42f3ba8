"""Paired bootstrap: is one encoder better than another beyond the random choice of test items?

Items are drawn with replacement, every encoder is scored on the same sample, and the differences of the scores are
compared. A sample is stored as how often each item was drawn. So nothing is sorted again: the order of the items never
changes, and the ranks within a sample are running sums of the counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Scorer = Callable[[Floats], Floats]
"""[samples, items] counts of how often each item was drawn -> [encoders, samples] scores."""

SAMPLES = 1000
_CHUNK = 100
"""Samples that are scored at a time."""


@dataclass(frozen=True)
class Difference:
    """The difference of two scores with its bootstrap interval."""

    value: float
    low: float
    high: float
    """95 % percentile interval."""
    p: float
    """Two-sided p-value."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def difference(value: float, samples: Floats, level: float = 0.95) -> Difference:
    """Interval and p-value of a difference.

    Args:
        value: The difference of the scores on the items themselves.
        samples: [samples] differences of the same scores on bootstrap samples.
        level: Level of the percentile interval.

    """
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    opposite = min(np.count_nonzero(samples <= 0), np.count_nonzero(samples >= 0))
    p = float(min(1.0, 2 * (opposite + 1) / (len(samples) + 1)))
    return Difference(float(value), float(low), float(high), p)


def resample(scorer: Scorer, items: int, *, samples: int = SAMPLES, seed: int = 0) -> tuple[Floats, Floats]:
    """[encoders] scores on the items themselves, and [encoders, samples] scores on bootstrap samples of them."""
    rng = np.random.default_rng(seed)
    scores = []
    for start in range(0, samples, _CHUNK):
        rows = min(_CHUNK, samples - start)
        draws = rng.integers(0, items, (rows, items)) + items * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items)
        scores.append(scorer(counts.astype(np.float64)))
    return scorer(np.ones((1, items)))[:, 0], np.concatenate(scores, axis=1)


def mean_scorer(values: Floats) -> Scorer:
    """Scores encoders by the mean of their [encoders, items] values.

    Each encoder is multiplied on its own: in one matrix product the rounding of a row depends on its neighbours, and
    encoders with equal values would seem to differ.
    """
    rows = [np.array(row, np.float64) for row in values]
    return lambda counts: np.stack([counts @ row for row in rows]) / counts.sum(axis=1)


def spearman_scorer(predicted: Floats, gold: Floats) -> Scorer:
    """Scores encoders by the rank correlation of their [encoders, items] similarities with [items] human scores.

    Items are ranked within every sample, ties by their mean rank. A correlation with a constant is 0.
    """
    predicted_ranks = [_rank_function(row) for row in np.asarray(predicted, np.float64)]
    gold_ranks = _rank_function(np.asarray(gold, np.float64))

    def score(counts: Floats) -> Floats:
        mean_rank = (counts.sum(axis=1, keepdims=True) + 1) / 2  # the same whatever the ties
        y = gold_ranks(counts) - mean_rank
        weighted = counts * y
        gold_variance = np.einsum("si,si->s", weighted, y)
        correlations = []
        for ranks in predicted_ranks:
            x = ranks(counts) - mean_rank
            scale = np.sqrt(np.einsum("si,si,si->s", counts, x, x) * gold_variance)
            correlations.append(np.einsum("si,si->s", weighted, x) / np.where(scale > 0, scale, 1.0))
        return np.stack(correlations)

    return score


def average_precision_scorer(predicted: Floats, gold: Floats) -> Scorer:
    """Scores encoders by the average precision of their [encoders, items] similarities.

    Items with gold > 0 are positive. Items of equal similarity enter together, as in scikit-learn. A sample without a
    positive item scores 0.
    """
    positive = (np.asarray(gold, np.float64) > 0).astype(np.float64)
    sorted_items = [_sort_with_ties(-np.asarray(row, np.float64)) for row in predicted]

    def score(counts: Floats) -> Floats:
        precisions = []
        for order, ends, _ in sorted_items:
            ordered = counts[:, order]
            retrieved = np.cumsum(ordered, axis=1)[:, ends]
            true_positives = np.cumsum(ordered * positive[order], axis=1)[:, ends]
            steps = np.diff(true_positives, axis=1, prepend=0.0)
            total = np.maximum(true_positives[:, -1], 1.0)
            precisions.append((steps * true_positives / np.maximum(retrieved, 1.0)).sum(axis=1) / total)
        return np.stack(precisions)

    return score


def _rank_function(values: Floats) -> Callable[[Floats], Floats]:
    """A function from [samples, items] counts to the ranks of the items within each sample."""
    order, ends, group = _sort_with_ties(values)

    def ranks_within(counts: Floats) -> Floats:
        up_to = np.cumsum(counts[:, order], axis=1)[:, ends]
        before = np.concatenate([np.zeros((len(counts), 1)), up_to[:, :-1]], axis=1)
        ranks: Floats = (before + up_to + 1) / 2
        return ranks[:, group]

    return ranks_within


def _sort_with_ties(values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The order of the items, the last index in it of each group of equal values, and the group of each item."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.argsort(values, kind="stable"), np.cumsum(sizes) - 1, group
