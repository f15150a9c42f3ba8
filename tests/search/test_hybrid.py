"""Fused rankings equal plain loops, also where one ranking is empty."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.search.hybrid import FUSIONS, FullScores, Fusion, RankedDocument


def toy_ranking(name, count, seed, low, high):
    rng = random.Random(f"{name}{seed}")
    ids = rng.sample([f"d{n}" for n in range(40)], count)
    scores = sorted((rng.uniform(low, high) for _ in ids), reverse=True)
    return [RankedDocument(id, f"{id}#{name}", score) for id, score in zip(ids, scores, strict=True)]


def ids_of(ranking):
    return [document.id for document in ranking]


def scores_of(ranking):
    return {document.id: document.score for document in ranking}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_rrf_equals_a_plain_loop(seed, weight):
    dense, lexical = toy_ranking("a", 20, seed, 0.2, 0.9), toy_ranking("b", 15, seed, 0.1, 30)
    expected = {}
    for ranking, share in ((dense, weight), (lexical, 1 - weight)):
        for rank, document in enumerate(ranking, 1):
            expected[document.id] = expected.get(document.id, 0) + share / (60 + rank)
    fused = Fusion("rrf", weight)(dense, lexical)
    assert scores_of(fused) == pytest.approx(expected)
    assert [document.score for document in fused] == pytest.approx(sorted(expected.values(), reverse=True))


@pytest.mark.parametrize("method", ["weighted", "minmax", "zscore"])
def test_fused_scores_equal_a_plain_loop(method):
    dense, lexical = toy_ranking("a", 20, 1, 0.2, 0.9), toy_ranking("b", 15, 1, 0.1, 30)
    dense_scores, lexical_scores = scores_of(dense), scores_of(lexical)
    expected = {}
    for id in {*dense_scores, *lexical_scores}:
        total = 0.0
        for scores, share, floor in ((dense_scores, 0.3, min(dense_scores.values())), (lexical_scores, 0.7, 0.0)):
            value, values = scores.get(id, floor), np.array([*scores.values(), floor])
            if method == "minmax":
                value = (value - floor) / (values.max() - floor)
            if method == "zscore":
                value = (value - values.mean()) / values.std()
            total += share * value
        expected[id] = total
    assert scores_of(Fusion(method, 0.3)(dense, lexical)) == pytest.approx(expected)


@pytest.mark.parametrize("full", [(1.0, 40.0), (0.5, 20.0), (0.0, 0.0)])
def test_default_scores_are_shares_of_a_full_match(full):
    dense, lexical = toy_ranking("a", 20, 1, 0.2, 0.9), toy_ranking("b", 15, 1, 0.1, 30)
    dense_scores, lexical_scores = scores_of(dense), scores_of(lexical)
    floor, highest = min(dense_scores.values()), max(full[0], *dense_scores.values())
    fused = Fusion()(dense, lexical, FullScores(*full))
    for document in fused:
        similarity = (dense_scores.get(document.id, floor) - floor) / (highest - floor)
        words = lexical_scores.get(document.id, 0.0) / max(full[1], *lexical_scores.values())
        assert (document.dense, document.lexical) == pytest.approx((similarity, words))
        assert document.score == pytest.approx(0.6 * similarity + 0.4 * words)
        assert 0 <= document.score <= 1
    assert [document.score for document in fused] == sorted((document.score for document in fused), reverse=True)


@pytest.mark.parametrize("method", FUSIONS)
def test_full_weight_on_one_ranking_keeps_its_order(method):
    dense, lexical = toy_ranking("a", 20, 2, 0.2, 0.9), toy_ranking("b", 15, 2, 0.1, 30)
    assert ids_of(Fusion(method, 1.0)(dense, lexical))[:19] == ids_of(dense)[:19]
    assert ids_of(Fusion(method, 0.0)(dense, lexical))[:15] == ids_of(lexical)


@pytest.mark.parametrize("method", FUSIONS)
def test_one_or_both_rankings_may_be_empty(method):
    dense = toy_ranking("a", 5, 3, 0.2, 0.9)
    assert ids_of(Fusion(method)(dense, [])) == ids_of(dense)
    assert ids_of(Fusion(method)([], dense)) == ids_of(dense)
    assert Fusion(method)([], []) == []


@pytest.mark.parametrize("method", FUSIONS)
def test_single_lexical_match_counts(method):
    dense = [RankedDocument("a", "a#0", 0.5), RankedDocument("b", "b#0", 0.499), RankedDocument("c", "c#0", 0.1)]
    assert Fusion(method, 0.5)(dense, [RankedDocument("b", "b#0", 3.0)])[0].id == "b"


def test_chunk_of_the_better_rank_is_kept():
    dense = [RankedDocument("a", "a#0", 0.9), RankedDocument("b", "b#0", 0.8)]
    lexical = [RankedDocument("b", "b#7", 4.0), RankedDocument("a", "a#7", 3.0)]
    assert {document.id: document.chunk_key for document in Fusion()(dense, lexical)} == {"a": "a#0", "b": "b#7"}


def test_unknown_methods_and_weights_are_refused():
    with pytest.raises(InputError, match="Unknown fusion"):
        Fusion("magic")
    with pytest.raises(InputError, match="between 0 and 1"):
        Fusion("rrf", 1.5)
