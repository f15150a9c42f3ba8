"""Tests of `decoder2vec.text.bm25` against the formula in plain Python."""

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
    """Lucene's BM25, word by word."""
    words = tokenise_words(documents)
    mean = sum(map(len, words)) / len(words)
    scores = []
    for document_words in words:
        total = 0.0
        for word in tokenise_words([query])[0]:
            document_count = sum(word in other for other in words)
            if document_count:
                idf = math.log(1 + (len(words) - document_count + 0.5) / (document_count + 0.5))
                count = document_words.count(word)
                total += idf * count / (count + k1 * (1 - b + b * len(document_words) / mean))
        scores.append(total)
    return scores


def test_scores_equal_the_formula():
    expected = [by_formula(query, DOCUMENTS) for query in QUERIES]
    assert np.count_nonzero(expected) > 5
    assert np.allclose(BM25(DOCUMENTS).scores(QUERIES), expected, atol=1e-6)


def test_words_are_lower_case_stems_without_stop_words():
    assert tokenise_words(["The Cats are RUNNING, 42 a x"]) == [["cat", "run", "42"]]
    for text, words in zip(DOCUMENTS, tokenise_words(DOCUMENTS), strict=True):
        assert len(words) <= len(re.findall(r"\w\w+", text))


def test_search_returns_only_texts_that_share_a_word_best_first():
    index = BM25(DOCUMENTS)
    scores = by_formula("sleeping cats", DOCUMENTS)
    expected = sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: -scores[n])
    hits = index.search("sleeping cats", 10)
    assert [text for text, _ in hits] == expected and len(expected) == 3
    assert np.allclose([score for _, score in hits], sorted(scores, reverse=True)[:3], atol=1e-6)
    assert index.search("sleeping cats", 1) == hits[:1]
    assert index.search("quantum", 10) == []


def test_ties_are_ordered_by_index():
    assert [text for text, _ in BM25(["red fox", "blue fox", "red fox"]).search("red", 3)] == [0, 2]


@pytest.mark.parametrize("documents", [[], [""], ["the", "a"]])
def test_documents_without_words_score_zero(documents):
    index = BM25(documents)
    assert index.scores(QUERIES).shape == (len(QUERIES), len(documents))
    assert not index.scores(QUERIES).any()
    assert index.search("cats", 3) == []


def test_no_queries_give_no_rows():
    assert BM25(DOCUMENTS).scores([]).shape == (0, len(DOCUMENTS))
