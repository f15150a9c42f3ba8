"""Fused rankings against plain loops, and the odd cases in which one side is silent."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.search.hybrid import FUSIONS, Found, Fusion


def ranking(side, count, seed, low, high):
    rng = random.Random(f"{side}{seed}")
    documents = rng.sample([f"d{n}" for n in range(40)], count)
    scores = sorted((rng.uniform(low, high) for _ in documents), reverse=True)
    return [Found(name, f"{name}#{side}", score) for name, score in zip(documents, scores, strict=True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_rrf_equals_a_plain_loop(seed, weight):
    dense, lexical = ranking("a", 20, seed, 0.2, 0.9), ranking("b", 15, seed, 0.1, 30)
    expected = {}
    for side, share in ((dense, weight), (lexical, 1 - weight)):
        for rank, found in enumerate(side, 1):
            expected[found.document] = expected.get(found.document, 0) + share / (60 + rank)
    fused = Fusion("rrf", weight)(dense, lexical)
    assert {found.document: found.score for found in fused} == pytest.approx(expected)
    assert [found.score for found in fused] == pytest.approx(sorted(expected.values(), reverse=True))


@pytest.mark.parametrize("method", ["weighted", "minmax", "zscore"])
def test_fused_scores_equal_a_plain_loop(method):
    dense, lexical = ranking("a", 20, 1, 0.2, 0.9), ranking("b", 15, 1, 0.1, 30)
    sides = ({one.document: one.score for one in dense}, {one.document: one.score for one in lexical})
    expected = {}
    for document in {*sides[0], *sides[1]}:
        total = 0.0
        for side, share, floor in ((sides[0], 0.3, min(sides[0].values())), (sides[1], 0.7, 0.0)):
            value, values = side.get(document, floor), np.array([*side.values(), floor])
            if method == "minmax":
                value = (value - floor) / (values.max() - floor)
            if method == "zscore":
                value = (value - values.mean()) / values.std()
            total += share * value
        expected[document] = total
    assert {one.document: one.score for one in Fusion(method, 0.3)(dense, lexical)} == pytest.approx(expected)


@pytest.mark.parametrize("method", FUSIONS)
def test_all_weight_on_one_side_keeps_its_order(method):
    dense, lexical = ranking("a", 20, 2, 0.2, 0.9), ranking("b", 15, 2, 0.1, 30)
    assert [one.document for one in Fusion(method, 1.0)(dense, lexical)][:19] == [one.document for one in dense][:19]
    assert [one.document for one in Fusion(method, 0.0)(dense, lexical)][:15] == [one.document for one in lexical]


@pytest.mark.parametrize("method", FUSIONS)
def test_one_side_or_both_may_be_silent(method):
    dense = ranking("a", 5, 3, 0.2, 0.9)
    assert [one.document for one in Fusion(method)(dense, [])] == [one.document for one in dense]
    assert [one.document for one in Fusion(method)([], dense)] == [one.document for one in dense]
    assert Fusion(method)([], []) == []


@pytest.mark.parametrize("method", FUSIONS)
def test_a_single_match_by_words_is_worth_something(method):
    dense = [Found("a", "a#0", 0.5), Found("b", "b#0", 0.499), Found("c", "c#0", 0.1)]
    assert Fusion(method, 0.5)(dense, [Found("b", "b#0", 3.0)])[0].document == "b"


def test_the_chunk_of_the_better_rank_is_shown():
    dense = [Found("a", "a#0", 0.9), Found("b", "b#0", 0.8)]
    lexical = [Found("b", "b#7", 4.0), Found("a", "a#7", 3.0)]
    assert {one.document: one.key for one in Fusion()(dense, lexical)} == {"a": "a#0", "b": "b#7"}


def test_unknown_methods_and_weights_are_refused():
    with pytest.raises(InputError, match="Unknown fusion"):
        Fusion("magic")
    with pytest.raises(InputError, match="between 0 and 1"):
        Fusion("rrf", 1.5)
