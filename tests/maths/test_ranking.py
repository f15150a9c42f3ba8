"""Measures of a ranking against scikit-learn and plain loops over a sorted list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from decoder2vec.maths.ranking import average_precision, document_ranks, ndcg, ranking_scores, recall, reciprocal_rank


def made_up(seed, documents=60, levels=None):
    """Scores, with ties if they have only so many levels, and gains of which most are 0."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=documents) if levels is None else rng.integers(0, levels, documents).astype(float)
    gains = rng.choice([0, 0, 0, 0, 1, 2, 3], documents)
    gains[rng.integers(documents)] = 1
    return scores, gains


def by_sorting(scores, gains):
    """As trec_eval would, with names that fall from first to last: a sorted list and a loop over it."""
    names = [f"{len(scores) - place:05d}" for place in range(len(scores))]
    order = sorted(range(len(scores)), key=lambda place: (scores[place], names[place]), reverse=True)
    ranked = [int(gains[place]) for place in order]
    relevant = sum(gain > 0 for gain in ranked)
    found, precisions, first = 0, [], 0.0
    for rank, gain in enumerate(ranked, 1):
        if gain > 0:
            found += 1
            precisions.append(found / rank)
            first = first or 1 / rank
    dcg = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranked[:10], 1))
    ideal = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(sorted(ranked, reverse=True)[:10], 1))
    recalls = {f"recall@{k}": sum(gain > 0 for gain in ranked[:k]) / relevant for k in (1, 10, 100)}
    return {"ndcg@10": dcg / ideal, "map": sum(precisions) / relevant, "mrr": first, **recalls}


@pytest.mark.parametrize("levels", [None, 5, 1], ids=["no ties", "ties", "all tied"])
@pytest.mark.parametrize("seed", range(10))
def test_every_measure_is_that_of_a_sorted_list(seed, levels):
    scores, gains = made_up(seed, levels=levels)
    places = np.flatnonzero(gains)
    found = ranking_scores(document_ranks(scores, places), gains[places].astype(float), gains.astype(float))
    assert found == pytest.approx(by_sorting(scores, gains), abs=1e-12)


@pytest.mark.parametrize("k", [1, 5, 10, 100])
@pytest.mark.parametrize("seed", range(5))
def test_ndcg_and_average_precision_are_scikit_learns_where_nothing_ties(seed, k):
    scores, gains = made_up(seed)
    places = np.flatnonzero(gains)
    ranks = document_ranks(scores, places)
    assert ndcg(ranks, gains[places], gains, k) == pytest.approx(ndcg_score([gains], [scores], k=k), abs=1e-12)
    expected = average_precision_score(gains > 0, scores)
    assert average_precision(ranks, len(places)) == pytest.approx(expected, abs=1e-12)


def test_of_equal_scores_the_first_place_ranks_first():
    assert document_ranks(np.array([1.0, 2.0, 1.0, 2.0]), [0, 1, 2, 3]).tolist() == [3, 1, 4, 2]


def test_a_document_that_is_not_there_is_never_found_but_still_wanted():
    """Two are relevant, one of them is missing; the other ranks first."""
    found = ranking_scores(np.array([1]), np.array([1.0]), np.array([1.0, 1.0]))
    ideal = 1 + 1 / math.log2(3)
    expected = {"ndcg@10": 1 / ideal, "map": 0.5, "mrr": 1.0, "recall@1": 0.5, "recall@10": 0.5, "recall@100": 0.5}
    assert found == pytest.approx(expected)


def test_nothing_relevant_there_scores_nothing():
    none = np.array([], np.intp)
    assert (ndcg(none, np.array([]), np.array([1.0]), 10), average_precision(none, 1)) == (0.0, 0.0)
    assert (reciprocal_rank(none), recall(none, 1, 10)) == (0.0, 0.0)
    assert (ndcg(none, np.array([]), np.array([]), 10), average_precision(none, 0), recall(none, 0, 5)) == (0, 0, 0)
