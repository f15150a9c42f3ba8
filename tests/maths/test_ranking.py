"""Ranking metrics against scikit-learn and plain loops over a sorted list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from decoder2vec.maths.ranking import average_precision, document_ranks, ndcg, ranking_scores, recall, reciprocal_rank


def toy(seed, documents=60, levels=None):
    """Scores, with ties if they have `levels` values only, and gains of which most are 0."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=documents) if levels is None else rng.integers(0, levels, documents).astype(float)
    gains = rng.choice([0, 0, 0, 0, 1, 2, 3], documents)
    gains[rng.integers(documents)] = 1
    return scores, gains


def metrics_by_sorting(scores, gains):
    """As trec_eval computes them, with names in descending order: a sorted list and a loop over it."""
    names = [f"{len(scores) - index:05d}" for index in range(len(scores))]
    order = sorted(range(len(scores)), key=lambda index: (scores[index], names[index]), reverse=True)
    ranked = [int(gains[index]) for index in order]
    n_relevant = sum(gain > 0 for gain in ranked)
    hits, precisions, reciprocal = 0, [], 0.0
    for rank, gain in enumerate(ranked, 1):
        if gain > 0:
            hits += 1
            precisions.append(hits / rank)
            reciprocal = reciprocal or 1 / rank
    dcg = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranked[:10], 1))
    ideal = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(sorted(ranked, reverse=True)[:10], 1))
    recalls = {f"recall@{k}": sum(gain > 0 for gain in ranked[:k]) / n_relevant for k in (1, 10, 100)}
    return {"ndcg@10": dcg / ideal, "map": sum(precisions) / n_relevant, "mrr": reciprocal, **recalls}


@pytest.mark.parametrize("levels", [None, 5, 1], ids=["no ties", "ties", "all tied"])
@pytest.mark.parametrize("seed", range(10))
def test_every_metric_equals_that_of_a_sorted_list(seed, levels):
    scores, gains = toy(seed, levels=levels)
    relevant = np.flatnonzero(gains)
    metrics = ranking_scores(document_ranks(scores, relevant), gains[relevant].astype(float), gains.astype(float))
    assert metrics == pytest.approx(metrics_by_sorting(scores, gains), abs=1e-12)


@pytest.mark.parametrize("k", [1, 5, 10, 100])
@pytest.mark.parametrize("seed", range(5))
def test_ndcg_and_map_equal_scikit_learn_without_ties(seed, k):
    scores, gains = toy(seed)
    relevant = np.flatnonzero(gains)
    ranks = document_ranks(scores, relevant)
    assert ndcg(ranks, gains[relevant], gains, k) == pytest.approx(ndcg_score([gains], [scores], k=k), abs=1e-12)
    expected = average_precision_score(gains > 0, scores)
    assert average_precision(ranks, len(relevant)) == pytest.approx(expected, abs=1e-12)


def test_of_equal_scores_the_lower_index_ranks_first():
    assert document_ranks(np.array([1.0, 2.0, 1.0, 2.0]), [0, 1, 2, 3]).tolist() == [3, 1, 4, 2]


def test_missing_relevant_document_counts_as_not_retrieved():
    """Two are relevant, one of them is missing; the other ranks first."""
    metrics = ranking_scores(np.array([1]), np.array([1.0]), np.array([1.0, 1.0]))
    ideal = 1 + 1 / math.log2(3)
    expected = {"ndcg@10": 1 / ideal, "map": 0.5, "mrr": 1.0, "recall@1": 0.5, "recall@10": 0.5, "recall@100": 0.5}
    assert metrics == pytest.approx(expected)


def test_no_relevant_document_scores_zero():
    none = np.array([], np.intp)
    assert (ndcg(none, np.array([]), np.array([1.0]), 10), average_precision(none, 1)) == (0.0, 0.0)
    assert (reciprocal_rank(none), recall(none, 1, 10)) == (0.0, 0.0)
    assert (ndcg(none, np.array([]), np.array([]), 10), average_precision(none, 0), recall(none, 0, 5)) == (0, 0, 0)
