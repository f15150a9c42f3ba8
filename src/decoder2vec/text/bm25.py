"""BM25: texts found by the rare words they share with a query. The scores are those of the library bm25s.

Words are lower-cased runs of two or more letters or digits, without English stop words, stemmed; k1 = 1.5, b = 0.75,
and words weigh by rarity as in Lucene: the settings of mteb's own BM25, so that numbers can be compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

StopWords = str | list[str]
"""Words that count for nothing: those of a language, or a list."""

K1 = 1.5
B = 0.75

SETTINGS = {"method": "lucene", "k1": K1, "b": B, "stop_words": "en", "stemmer": "english"}
"""All that changes a score."""


class BM25:
    """Texts that can be searched by words."""

    def __init__(self, texts: Sequence[str], stop_words: StopWords = "en") -> None:
        self.size, self._stop_words = len(texts), stop_words
        tokenised = counted(texts, stop_words)
        self._index = empty_index()
        self._known = frozenset(tokenised.vocab) - {""}
        if self._known:  # bm25s divides by zero where no text has a word
            self._index.index(tokenised, show_progress=False)

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[query, text] scores; 0 where no word is shared."""
        return (
            np.stack([self._row(words) for words in words_of(queries, self._stop_words)])
            if len(queries)
            else self._nothing(0)
        )

    def best(self, query: str, count: int) -> list[tuple[int, float]]:
        """(number, score) of the texts that share words with the query, best first, `count` of them at most."""
        row = self._row(words_of([query], self._stop_words)[0])
        order = np.argsort(-row, kind="stable")[:count]  # stable: of equal scores, the earlier text is first
        return [(int(number), float(row[number])) for number in order if row[number] > 0]

    def _row(self, words: list[str]) -> NDArray[np.float32]:
        known = [word for word in words if word in self._known]
        return np.asarray(self._index.get_scores(known), np.float32) if known else self._nothing(1)[0]

    def _nothing(self, rows: int) -> NDArray[np.float32]:
        return np.zeros((rows, self.size), np.float32)


def empty_index() -> Any:
    """An empty index of bm25s with these settings."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return bm25s.BM25(method=SETTINGS["method"], k1=K1, b=B)


def counted(texts: Sequence[str], stop_words: StopWords = "en") -> Any:
    """The words of each text by number, and the vocabulary: what such an index is made of."""
    return _tokenise(texts, stop_words, return_ids=True)


def words_of(texts: Sequence[str], stop_words: StopWords = "en") -> list[list[str]]:
    """The words of each text as BM25 counts them."""
    words: list[list[str]] = _tokenise(texts, stop_words, return_ids=False)
    return words


def stem(word: str) -> str:
    """The stem of a word in small letters: "engineer" for "engineers"."""
    stemmed: str = _stemmer().stemWord(word)
    return stemmed


def _tokenise(texts: Sequence[str], stop_words: StopWords, *, return_ids: bool) -> Any:
    import bm25s

    return bm25s.tokenize(
        list(texts), stopwords=stop_words, stemmer=_stemmer(), return_ids=return_ids, show_progress=False
    )


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
