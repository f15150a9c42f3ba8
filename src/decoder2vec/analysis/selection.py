"""How much the choice of the best of many readings can be trusted, given the pairs that it was made on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.maths.bootstrap import difference, resample, spearman_scorer

Floats = NDArray[np.float64]

FEW_PAIRS = 200
"""With fewer pairs than this the best of many readings is mostly luck."""
_FOLDS, _REPEATS = 5, 4
_BLOCK = 64
"""Readings that are compared with the best at a time."""


@dataclass(frozen=True)
class Selection:
    """The best of many readings: its score is too high by the luck of being chosen, and others may be as good."""

    n_pairs: int
    n_readings: int
    spearman_95: tuple[float, float]
    """95 % bootstrap interval of the best score, x 100."""
    cross_validated: float | None
    """What such a choice gives on pairs it was not made on, Spearman x 100; None with too few pairs to split."""
    tied: tuple[int, ...]
    """Indices of the readings that are not significantly worse than the best (paired bootstrap), itself included."""

    @property
    def few_pairs(self) -> bool:
        """Whether the pairs are so few that the choice is mostly luck."""
        return self.n_pairs < FEW_PAIRS

    def summary(self) -> str:
        """One line: the interval of the best score, what choosing gives on other pairs, how many readings are tied."""
        low, high = self.spearman_95
        parts = [f"best score in [{low:.1f}, {high:.1f}] (95 %)"]
        if self.cross_validated is not None:
            parts.append(f"cross-validated: {self.cross_validated:.1f}")
        parts.append(f"{len(self.tied)} of {self.n_readings} readings are tied with the best")
        return "; ".join(parts)

    def warning(self) -> str:
        """What to do about few pairs; empty if there are enough."""
        if not self.few_pairs or self.n_readings == 1:
            return ""
        return (
            f"The best of {self.n_readings} readings on {self.n_pairs} pairs is largely luck: "
            f"give {FEW_PAIRS} pairs or more, or try fewer readings."
        )

    def to_json(self) -> dict[str, Any]:
        """For sweep.json."""
        return {**asdict(self), "few_pairs": self.few_pairs}


def measure_selection(similarities: Floats, gold: Sequence[float], best: int) -> Selection:
    """Measure how much the choice of the best reading depends on the pairs.

    Args:
        similarities: [readings, pairs] cosines.
        gold: [pairs] human scores.
        best: Index of the chosen reading.
    """
    truth = np.asarray(gold, np.float64)
    (best_samples,) = _bootstrap(similarities[[best]], truth)
    low, high = np.quantile(best_samples, (0.025, 0.975))
    cross_validated = _cross_validated_score(similarities, truth)
    return Selection(
        len(truth),
        len(similarities),
        (round(100 * low, 2), round(100 * high, 2)),
        None if cross_validated is None else round(100 * cross_validated, 2),
        _tied_readings(similarities, truth, best, best_samples),
    )


def _cross_validated_score(similarities: Floats, gold: Floats) -> float | None:
    """Mean score, on the fifth of the pairs that was left out, of the reading chosen on the others."""
    n_pairs = len(gold)
    if n_pairs < 4 * _FOLDS:  # a fold of three pairs has next to no rank correlation
        return None
    rng = np.random.default_rng(0)
    folds = np.concatenate([rng.permutation(n_pairs) % _FOLDS for _ in range(_REPEATS)]).reshape(_REPEATS, n_pairs)
    held_out = np.concatenate([folds == fold for fold in range(_FOLDS)]).astype(np.float64)  # [splits, pairs]
    # a pair that counts 0 times is not ranked, so that all splits are scored as samples of a bootstrap are
    counts = np.concatenate([1 - held_out, held_out])
    chosen_on, scored_on = np.split(_scores(similarities, gold, counts), 2, axis=1)
    return float(scored_on[chosen_on.argmax(axis=0), np.arange(len(held_out))].mean())


def _scores(similarities: Floats, gold: Floats, counts: Floats) -> Floats:
    """[readings, samples] rank correlations under [samples, pairs] counts of the pairs."""
    blocks = [similarities[start : start + _BLOCK] for start in range(0, len(similarities), _BLOCK)]
    return np.concatenate([spearman_scorer(block, gold)(counts) for block in blocks])


def _bootstrap(similarities: Floats, gold: Floats) -> Floats:
    """[readings, samples] rank correlations on the same bootstrap samples of the pairs in every call."""
    return resample(spearman_scorer(similarities, gold), len(gold))[1]


def _tied_readings(similarities: Floats, gold: Floats, best: int, best_samples: Floats) -> tuple[int, ...]:
    """The readings whose difference from the best has a bootstrap interval that includes 0.

    They are compared from the best score down, until a whole block of them is worse: the others, with still lower
    scores, are then taken for worse, too.
    """
    scores = _scores(similarities, gold, np.ones((1, len(gold))))[:, 0]
    order = np.argsort(-scores, kind="stable")
    others = order[order != best]
    tied = [best]
    for start in range(0, len(others), _BLOCK):
        block = others[start : start + _BLOCK]
        tied_in_block = [
            int(reading)
            for reading, samples in zip(block, _bootstrap(similarities[block], gold), strict=True)
            if not difference(scores[best] - scores[reading], best_samples - samples).significant
        ]
        if not tied_in_block:
            break
        tied += tied_in_block
    return tuple(sorted(tied))
