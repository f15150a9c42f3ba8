"""Quality of a ranking: nDCG, average precision, reciprocal rank and recall, as trec_eval computes them.

All of them follow from the ranks of the relevant documents alone, so no document list is sorted. A document is relevant
if its gain is above 0; a relevant document that is missing from the ranking counts as never retrieved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ranks = NDArray[np.intp]


def document_ranks(scores: Floats, indices: Sequence[int]) -> Ranks:
    """Ranks, from 1, of the documents at these indices of `scores`; of equal scores the lower index ranks first.

    trec_eval breaks ties by document name, from Z to A: pass the documents in that order for the same result.
    """
    above = [np.count_nonzero(scores > scores[at]) + np.count_nonzero(scores[:at] == scores[at]) for at in indices]
    return np.array(above, np.intp) + 1


def ndcg(ranks: Ranks, gains: Floats, all_gains: Floats, k: int) -> float:
    """nDCG@k.

    Args:
        ranks: Ranks of the relevant documents that are in the ranking.
        gains: Their gains, in the same order.
        all_gains: Gains of all relevant documents, also of those that are missing from the ranking.
        k: Cutoff.

    """
    best = np.sort(np.asarray(all_gains, np.float64))[::-1][:k]
    ideal = float((best / np.log2(np.arange(2, len(best) + 2))).sum())
    top = ranks <= k
    dcg = float((np.asarray(gains, np.float64)[top] / np.log2(ranks[top] + 1.0)).sum())
    return dcg / ideal if ideal > 0 else 0.0


def average_precision(ranks: Ranks, relevant: int) -> float:
    """Mean of the precision at each of the `relevant` documents; a missing one adds 0."""
    ordered = np.sort(ranks)
    return float((np.arange(1, len(ordered) + 1) / ordered).sum() / relevant) if relevant else 0.0


def reciprocal_rank(ranks: Ranks) -> float:
    """1 / rank of the first relevant document."""
    return float(1 / ranks.min()) if len(ranks) else 0.0


def recall(ranks: Ranks, relevant: int, k: int) -> float:
    """Share of the `relevant` documents that are among the first k."""
    return float(np.count_nonzero(ranks <= k) / relevant) if relevant else 0.0


def ranking_scores(
    ranks: Ranks, gains: Floats, all_gains: Floats, cutoffs: Sequence[int] = (1, 10, 100)
) -> dict[str, float]:
    """Every metric of one query by name; for `ranks`, `gains` and `all_gains` see `ndcg`, `cutoffs` are for recall."""
    relevant = int(np.count_nonzero(cast(Floats, np.asarray(all_gains)) > 0))
    return {
        "ndcg@10": ndcg(ranks, gains, all_gains, 10),
        "map": average_precision(ranks, relevant),
        "mrr": reciprocal_rank(ranks),
        **{f"recall@{k}": recall(ranks, relevant, k) for k in cutoffs},
    }
