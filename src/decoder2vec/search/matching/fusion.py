"""Scores by meaning and by words made one, for every row of a table of scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import rankdata

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.search.matching.words import Scores

_RRF = 60
"""The constant of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""


def _between_0_and_1(scores: Scores) -> Scores:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.where(high > low, (scores - low) / np.where(high > low, high - low, 1.0), 0.0)


def _standardised(scores: Scores) -> Scores:
    spread = scores.std(1, keepdims=True)
    return np.where(spread > 0, (scores - scores.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0), 0.0)


def _by_rank(scores: Scores) -> Scores:
    """1 / (60 + rank); equal scores share the best of their ranks."""
    ranks: Scores = rankdata(-scores, method="min", axis=1)
    return 1.0 / (_RRF + ranks)


FUSIONS: dict[str, Callable[[Scores], Scores]] = {"minmax": _between_0_and_1, "zscore": _standardised, "rrf": _by_rank}
"""How the scores of a row are brought to one scale."""


def fuse(dense: Scores, lexical: Scores, weight: float, name: str = "minmax") -> Scores:
    """`weight` of the dense scores and the rest of the lexical ones, each row brought to one scale first."""
    if name not in FUSIONS:
        raise unknown_name("fusion", name, FUSIONS)
    if not 0 <= weight <= 1:
        raise InputError(f"The weight of the dense scores is {weight}; give a number from 0 to 1.")
    return weight * FUSIONS[name](dense) + (1 - weight) * FUSIONS[name](lexical)
