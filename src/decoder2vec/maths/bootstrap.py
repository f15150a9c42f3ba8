"""Is one encoder better than another, or was it the luck of these items?

The paired bootstrap: items are drawn with replacement, every encoder is scored on the same draw, and the differences
of the scores are counted. A draw is kept as how often each item was drawn. Then nothing is sorted again: the order of
the items never changes, so the ranks within a draw are running sums of those counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Scorer = Callable[[Floats], Floats]
"""How often each item was drawn, [samples, items] -> scores, [encoders, samples]."""

SAMPLES = 1000
_AT_ONCE = 100


@dataclass(frozen=True)
class Difference:
    """How much one score is above another, its 95 % interval, and how often luck alone goes so far (two-sided)."""

    value: float
    low: float
    high: float
    p: float

    @property
    def significant(self) -> bool:
        """Does this data show a difference? Where the interval holds 0 it does not."""
        return self.low > 0 or self.high < 0


def difference(value: float, drawn: Floats, level: float = 0.95) -> Difference:
    """The difference `value`, judged by the differences of the same scores on `drawn` samples (percentile interval)."""
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    rarer = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    return Difference(float(value), float(low), float(high), float(min(1.0, 2 * (rarer + 1) / (len(drawn) + 1))))


def resample(score: Scorer, items: int, *, samples: int = SAMPLES, seed: int = 0) -> tuple[Floats, Floats]:
    """Scores on the items as they are, [encoders], and on `samples` draws of them, [encoders, samples]."""
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, samples, _AT_ONCE):
        rows = min(_AT_ONCE, samples - start)
        draws = rng.integers(0, items, (rows, items)) + items * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items)
        found.append(score(counts.astype(np.float64)))
    return score(np.ones((1, items)))[:, 0], np.concatenate(found, axis=1)


def mean_scorer(values: Floats) -> Scorer:
    """Mean of the values of each encoder, [encoders, items].

    Each encoder is multiplied by itself: in one product of matrices the rounding of a row depends on its neighbours,
    and encoders with equal values would seem to differ.
    """
    rows = [np.array(row, np.float64) for row in values]
    return lambda counts: np.stack([counts @ row for row in rows]) / counts.sum(axis=1)


def spearman_scorer(predicted: Floats, gold: Floats) -> Scorer:
    """Rank correlation of each encoder's similarities, [encoders, items], with human scores; 0 where one is constant.

    Items are ranked anew within every draw, ties by their mean rank.
    """
    ranks = [_ranks(row) for row in np.asarray(predicted, np.float64)]
    truth = _ranks(np.asarray(gold, np.float64))

    def score(counts: Floats) -> Floats:
        middle = (counts.sum(axis=1, keepdims=True) + 1) / 2  # the mean of all ranks, whatever their ties
        y = truth(counts) - middle
        weighted = counts * y
        spread = np.einsum("si,si->s", weighted, y)
        found = []
        for own in ranks:
            x = own(counts) - middle
            scale = np.sqrt(np.einsum("si,si,si->s", counts, x, x) * spread)
            found.append(np.einsum("si,si->s", weighted, x) / np.where(scale > 0, scale, 1.0))
        return np.stack(found)

    return score


def _ranks(values: Floats) -> Callable[[Floats], Floats]:
    """Ranks of the items within draws, from how often each was drawn."""
    order, ends, group = _tied(values)

    def within(counts: Floats) -> Floats:
        upto = np.cumsum(counts[:, order], axis=1)[:, ends]
        before = np.concatenate([np.zeros((len(counts), 1)), upto[:, :-1]], axis=1)
        ranks: Floats = (before + upto + 1) / 2
        return ranks[:, group]

    return within


def average_precision_scorer(predicted: Floats, gold: Floats) -> Scorer:
    """Average precision of each encoder's similarities, [encoders, items], for items that are positive or not.

    Items of equal similarity enter together, as in scikit-learn; without a positive item it is 0.
    """
    positive = (np.asarray(gold, np.float64) > 0).astype(np.float64)
    sorted_items = [_tied(-np.asarray(row, np.float64)) for row in predicted]

    def score(counts: Floats) -> Floats:
        found = []
        for order, ends, _ in sorted_items:
            drawn = counts[:, order]
            all_upto = np.cumsum(drawn, axis=1)[:, ends]
            right_upto = np.cumsum(drawn * positive[order], axis=1)[:, ends]
            new = np.diff(right_upto, axis=1, prepend=0.0)
            total = np.maximum(right_upto[:, -1], 1.0)
            found.append((new * right_upto / np.maximum(all_upto, 1.0)).sum(axis=1) / total)
        return np.stack(found)

    return score


def _tied(values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The order of the items, where in it each group of equal values ends, and the group of every item."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.argsort(values, kind="stable"), np.cumsum(sizes) - 1, group
