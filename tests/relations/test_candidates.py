"""Candidates equal a brute-force sort, stay within documents, and give the upper limit of recall."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.relations import candidates as module
from decoder2vec.relations.candidates import retrieve
from decoder2vec.relations.mentions import Mention, MentionSet
from decoder2vec.relations.retriever import Retriever


def mention_set(documents, directed=True):
    mentions = [Mention(str(n), "text", document=document) for n, document in enumerate(documents)]
    return MentionSet.of(mentions, directed=directed)


def random_vectors(count, dim=6, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    vectors[::5] = vectors[0]  # ties
    return Retriever()(vectors)[0]


def brute_force(vectors, documents, k):
    """(head, tail) -> rank, by a sort of each mention's cosines; equal ones in the order of the mentions."""
    found = {}
    for head in range(len(vectors)):
        others = [tail for tail in range(len(vectors)) if tail != head and documents[tail] == documents[head]]
        others.sort(key=lambda tail: (-np.float32(vectors[head] @ vectors[tail]), tail))
        found.update({(head, tail): rank for rank, tail in enumerate(others[:k], 1)})
    return found


@pytest.mark.parametrize("k", [1, 3, 5, 50])
@pytest.mark.parametrize("rows", [2, 1024])
def test_candidates_equal_a_brute_force_sort(k, rows, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows)
    documents = "aaaaaaaaabbbbbbbbbbbbbcdd"
    vectors = np.round(random_vectors(len(documents)) * 64) / 64  # sums are exact in any order
    found = retrieve(vectors, vectors, mention_set(documents), k)
    assert dict(zip(found.tuples(), found.rank.tolist(), strict=True)) == brute_force(vectors, documents, k)
    cosines = [vectors[head] @ vectors[tail] for head, tail in found.pairs]
    assert found.similarity == pytest.approx(cosines, abs=1e-6)


def test_large_k_gives_all_pairs():
    data = mention_set("aaabb")
    vectors = random_vectors(5)
    assert len(retrieve(vectors, vectors, data, 4)) == data.n_pairs == 6 + 2


def test_neighbours_are_not_mutual_and_undirected_pairs_are_written_once():
    vectors = Retriever()(np.array([[1, 0], [1, 0.1], [1, 0.3]], np.float32))[0]
    directed = retrieve(vectors, vectors, mention_set("aaa"), 1).tuples()
    assert directed == [(0, 1), (1, 0), (2, 1)]  # 1 is nearest to 2, and not the other way around
    assert retrieve(vectors, vectors, mention_set("aaa", directed=False), 1).tuples() == [(0, 1), (1, 2)]


def test_two_tables_give_tails_of_the_second_only():
    tables = ([Mention(str(n), "head") for n in range(3)], [Mention(str(n), "tail") for n in range(4)])
    data = MentionSet.of(*tables)
    vectors = random_vectors(7)
    found = retrieve(vectors, vectors, data, 2)
    assert len(found) == 6 and set(found.pairs[:, 0]) == {0, 1, 2} and found.pairs[:, 1].min() >= 3
    assert len(retrieve(vectors, vectors, data, 9)) == data.n_pairs == 12


def test_recall_counts_pairs_that_were_not_retrieved():
    vectors = Retriever()(np.array([[1, 0], [1, 0.1], [1, 0.3]], np.float32))[0]
    found = retrieve(vectors, vectors, mention_set("aaa"), 1)
    assert found.recall({(2, 1): "x", (0, 2): "x", (1, 2): "y"}) == pytest.approx(1 / 3)
    assert found.recall({}) == 1.0


def test_k_is_at_least_one():
    with pytest.raises(InputError, match="k is 0"):
        retrieve(*2 * (random_vectors(2),), mention_set("aa"), 0)


def test_tuning_brings_related_pairs_to_the_front():
    """Tails are heads turned by a rotation, so that cosines of the untuned vectors say nothing."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    heads = rng.normal(size=(120, 16))
    vectors = np.concatenate([heads, heads @ rotation]).astype(np.float32)
    data = MentionSet.of([Mention(str(n), "h") for n in range(120)], [Mention(str(n), "t") for n in range(120)])
    gold = {(n, 120 + n): "x" for n in range(120)}
    train = np.array([pair for pair in gold if pair[0] < 100])
    others = np.array([(head, 120 + tail) for head in range(100) for tail in rng.integers(0, 100, 9) if head != tail])
    tuned = Retriever.fit(vectors, train, others)
    before, after = (retrieve(*each(vectors), data, 3).recall(list(gold)[100:]) for each in (Retriever(), tuned))
    assert before < 0.3 < 0.8 < after
