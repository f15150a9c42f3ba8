"""BM25 lexical search, with the scores of the library bm25s.

Words are lower-cased runs of two or more letters or digits, without English stop words, stemmed; k1 = 1.5, b = 0.75,
and inverse document frequency as in Lucene: the settings of mteb's own BM25, so that scores can be compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

StopWords = str | list[str]
"""Words to ignore: those of a language, by its code, or a list."""

K1 = 1.5
B = 0.75

SETTINGS = {"method": "lucene", "k1": K1, "b": B, "stop_words": "en", "stemmer": "english"}
"""Everything that changes a score."""


_MORE_QUERY_STOP_WORDS = (
    *("also", "anybody", "anyone", "anything", "cannot", "could", "ever", "every", "get", "gets", "got", "let", "long"),
    *("many", "may", "maybe", "might", "much", "must", "need", "often", "please", "shall", "somebody", "someone"),
    *("something", "tell", "us", "want", "whose", "would"),
)
"""Words of questions that the longer list of bm25s lacks."""


class BM25:
    """A BM25 index over texts in memory.

    Args:
        texts: The texts to search in.
        stop_words: Words to ignore in texts and queries.
    """

    def __init__(self, texts: Sequence[str], stop_words: StopWords = "en") -> None:
        self.size, self._stop_words = len(texts), stop_words
        tokenised = tokenise_to_ids(texts, stop_words)
        self._index = new_index()
        self._vocabulary = frozenset(tokenised.vocab) - {""}
        if self._vocabulary:  # bm25s divides by zero where no text has a word
            self._index.index(tokenised, show_progress=False)

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[query, text] scores; 0 where query and text share no word."""
        rows = [self._score_words(words) for words in tokenise_words(queries, self._stop_words)] if len(queries) else []
        return np.stack(rows) if rows else np.zeros((0, self.size), np.float32)

    def search(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """(index, score) of the `top_k` best texts that share words with the query, best first."""
        scores = self._score_words(tokenise_words([query], self._stop_words)[0])
        order = np.argsort(-scores, kind="stable")[:top_k]  # stable: of equal scores, the earlier text is first
        return [(int(index), float(scores[index])) for index in order if scores[index] > 0]

    def _score_words(self, words: list[str]) -> NDArray[np.float32]:
        known = [word for word in words if word in self._vocabulary]
        return np.asarray(self._index.get_scores(known) if known else np.zeros(self.size), np.float32)


def new_index() -> Any:
    """Return an empty bm25s index with the settings above."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return bm25s.BM25(method=SETTINGS["method"], k1=K1, b=B)


def tokenise_to_ids(texts: Sequence[str], stop_words: StopWords = "en") -> Any:
    """Return the word ids of each text and the vocabulary, as a bm25s index takes them."""
    return _tokenise(texts, stop_words, return_ids=True)


def tokenise_words(texts: Sequence[str], stop_words: StopWords = "en") -> list[list[str]]:
    """Return the stemmed words of each text, as BM25 counts them."""
    words: list[list[str]] = _tokenise(texts, stop_words, return_ids=False)
    return words


def tokenise_queries(queries: Sequence[str]) -> list[list[str]]:
    """Return the stemmed words of each query that say what it is about.

    Words that only make a query a question or a sentence ("how can I ...") are left out, unless nothing else remains.
    """
    words = tokenise_words(queries, _query_stop_words())
    if all(words):
        return words
    return [few or more for few, more in zip(words, tokenise_words(queries), strict=True)]


def stem(word: str) -> str:
    """Return the stem of a lower-case word: "engineer" for "engineers"."""
    stemmed: str = _stemmer().stemWord(word)
    return stemmed


def _tokenise(texts: Sequence[str], stop_words: StopWords, *, return_ids: bool) -> Any:
    import bm25s

    return bm25s.tokenize(
        list(texts), stopwords=stop_words, stemmer=_stemmer(), return_ids=return_ids, show_progress=False
    )


@cache
def _query_stop_words() -> list[str]:
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return sorted({*STOPWORDS_EN_PLUS, *_MORE_QUERY_STOP_WORDS})


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
