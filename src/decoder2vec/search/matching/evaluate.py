"""How good is a ranking? Recall, reciprocal rank and gain against labels, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.search.matching.labelled_set import FITS, MEANING, WORDS, LabelledSet
from decoder2vec.search.matching.words import Scores

RECALLS = (1, 5, 10)
_GAIN_AT = 10


def evaluate_ranking(scores: Scores, labelled: LabelledSet, rows: Sequence[int]) -> dict[str, Any]:
    """Everything there is to say about the scores [jobs, resumes] of these jobs, the two hard kinds apart."""
    chosen = list(rows)
    found = _summary(per_query(scores[chosen], labelled.grades[chosen]))
    meaning = [pair for pair in labelled.kinds.get(MEANING, []) if pair[0] in set(chosen)]
    words = [pair for pair in labelled.kinds.get(WORDS, []) if pair[0] in set(chosen)]
    return {
        "jobs": len(chosen),
        **found,
        "meaning_only": {"pairs": len(meaning), **_summary(by_meaning_only(scores, labelled.grades, meaning))},
        "shared_words": {"pairs": len(words), **_summary(against_shared_words(scores, labelled.grades, words))},
    }


def per_query(scores: Scores, grades: NDArray[Any]) -> dict[str, Scores]:
    """Recall@k, reciprocal rank and nDCG@10 of every row; a row where nothing fits is left out.

    What fits has grade 2; half fits count for the gain only (2^grade - 1). Equal scores keep the order of the columns.
    """
    some = (grades >= FITS).any(1)
    order = np.argsort(-scores[some], axis=1, kind="stable")
    ranked = np.take_along_axis(grades[some], order, 1)
    fits = ranked >= FITS
    gains, ideal = 2.0**ranked - 1, -np.sort(-(2.0 ** grades[some] - 1), axis=1)
    discount = 1 / np.log2(np.arange(2, min(_GAIN_AT, ranked.shape[1]) + 2))
    size = len(discount)
    return {
        **{f"recall@{k}": fits[:, :k].sum(1) / fits.sum(1) for k in RECALLS},
        "mrr": 1.0 / (1 + fits.argmax(1)),
        f"ndcg@{_GAIN_AT}": (gains[:, :size] @ discount) / (ideal[:, :size] @ discount),
    }


def by_meaning_only(scores: Scores, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]) -> dict[str, Scores]:
    """How high a fit that shares no word stands among those that do not fit; other fits are taken out."""
    ranks = []
    for job, resume in pairs:
        others = scores[job, (grades[job] == 0)]
        before = np.flatnonzero(grades[job] == 0) < resume
        ranks.append(1 + (others > scores[job, resume]).sum() + ((others == scores[job, resume]) & before).sum())
    places = np.array(ranks, np.float64)
    return {**{f"recall@{k}": (places <= k).astype(np.float64) for k in RECALLS}, "mrr": 1 / places}


def against_shared_words(scores: Scores, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]) -> dict[str, Scores]:
    """The share of a job's fits that score higher than the one that only shares its words."""
    right = [(scores[job, grades[job] >= FITS] > scores[job, wrong]).mean() for job, wrong in pairs]
    return {"fits_above": np.array(right, np.float64)}


def _summary(values: dict[str, Scores]) -> dict[str, Any]:
    """Means in points, and their 95 % bootstrap intervals; nothing for nothing."""
    said: dict[str, Any] = {}
    for name, value in values.items():
        if len(value):
            low, high = bootstrap_interval(value)
            said[name] = round(100 * float(value.mean()), 1)
            said[f"{name}_95"] = [round(100 * low, 1), round(100 * high, 1)]
    return said


def bootstrap_interval(
    values: Scores, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The interval of a mean: values are drawn anew with replacement."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (samples, len(values)))].mean(1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
