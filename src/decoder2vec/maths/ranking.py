"""How good is a ranking? nDCG, average precision, reciprocal rank and recall, as trec_eval counts them.

All of them follow from the ranks of the relevant documents alone, so no sorted list is ever made. A document is
relevant if its gain is above 0; one that is missing from the ranking counts as never found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ranks = NDArray[np.intp]


def document_ranks(scores: Floats, places: Sequence[int]) -> Ranks:
    """The ranks, from 1, of the documents at some places; of equal scores the first place ranks first.

    trec_eval breaks ties by document name, from Z to A: hand the documents over in that order for the same result.
    """
    found = [np.count_nonzero(scores > scores[at]) + np.count_nonzero(scores[:at] == scores[at]) for at in places]
    return np.array(found, np.intp) + 1


def ndcg(ranks: Ranks, gains: Floats, wanted: Floats, k: int) -> float:
    """Discounted gain of the first k, as a share of the best that could be; `wanted` holds all gains."""
    best = np.sort(np.asarray(wanted, np.float64))[::-1][:k]
    ideal = float((best / np.log2(np.arange(2, len(best) + 2))).sum())
    inside = ranks <= k
    got = float((np.asarray(gains, np.float64)[inside] / np.log2(ranks[inside] + 1.0)).sum())
    return got / ideal if ideal > 0 else 0.0


def average_precision(ranks: Ranks, relevant: int) -> float:
    """Mean of the precision at every relevant document; one that was never found adds 0."""
    ordered = np.sort(ranks)
    return float((np.arange(1, len(ordered) + 1) / ordered).sum() / relevant) if relevant else 0.0


def reciprocal_rank(ranks: Ranks) -> float:
    """1 / rank of the first relevant document."""
    return float(1 / ranks.min()) if len(ranks) else 0.0


def recall(ranks: Ranks, relevant: int, k: int) -> float:
    """Share of the relevant documents that stand among the first k."""
    return float(np.count_nonzero(ranks <= k) / relevant) if relevant else 0.0


def ranking_scores(
    ranks: Ranks, gains: Floats, wanted: Floats, cutoffs: Sequence[int] = (1, 10, 100)
) -> dict[str, float]:
    """Every measure for one query, by name. `ranks` and `gains` are those of the relevant documents that are there."""
    relevant = int(np.count_nonzero(cast(Floats, np.asarray(wanted)) > 0))
    return {
        "ndcg@10": ndcg(ranks, gains, wanted, 10),
        "map": average_precision(ranks, relevant),
        "mrr": reciprocal_rank(ranks),
        **{f"recall@{k}": recall(ranks, relevant, k) for k in cutoffs},
    }
