"""BM25 by the encoder's door: what words alone can do.

`relevance` and `score` are real BM25 scores, rare words weighted by the documents given: what retrieval and reranking
are to use. `encode` is for tasks that need vectors of single texts (similarity, clustering, classification). There a
text's vector may not depend on other texts, so no word is rare or common: each word gets BM25's saturated count
tf / (tf + k1), at a place of the vector and with a sign that the word's hash decides, and vectors are compared by
cosine. (A hash that two words share adds noise of both signs, which cancels on average.)
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines.baseline import Baseline, Vectors
from decoder2vec.spec import fingerprint
from decoder2vec.text.bm25 import BM25, K1, SETTINGS, words_of

_DIM = 4096


class BM25Words(Baseline):
    """Texts by their words."""

    kind = "bm25"
    dim = _DIM
    fingerprint = fingerprint("bm25", SETTINGS, _DIM)

    def relevance(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """[query, document] BM25 scores of the queries in these documents."""
        return self.index_of(documents).scores(queries)

    def index_of(self, documents: Sequence[str]) -> BM25:
        """The documents, to be asked more than once."""
        return BM25(documents)

    def score(self, texts1: str | Sequence[str], texts2: str | Sequence[str]) -> float | NDArray[np.float32]:
        """BM25 scores of pairs of query and document; words are rare or common among the second texts."""
        one = isinstance(texts1, str)
        queries = [texts1] if isinstance(texts1, str) else list(texts1)
        documents = [texts2] if isinstance(texts2, str) else list(texts2)
        if one != isinstance(texts2, str) or len(queries) != len(documents):
            raise InputError("score() takes two texts, or two lists of as many texts.")
        columns = {text: column for column, text in enumerate(dict.fromkeys(documents))}
        places: dict[str, list[int]] = {}
        for place, query in enumerate(queries):
            places.setdefault(query, []).append(place)
        index = BM25(list(columns))
        found = np.empty(len(queries), np.float32)
        for query, rows in places.items():  # a query at a time: all scores at once can be more than memory holds
            found[rows] = index.scores([query])[0][[columns[documents[row]] for row in rows]]
        return float(found[0]) if one else found

    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] saturated counts of words, by hash."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, words in zip(vectors, words_of(texts), strict=True):
            for word, count in Counter(words).items():
                place, sign = _place(word)
                row[place] += sign * count / (count + K1)
        return vectors


@lru_cache(maxsize=1 << 18)
def _place(word: str) -> tuple[int, int]:
    """Where a word stands in a vector, and with which sign; the same on every machine."""
    number = int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "big")
    return (number >> 1) % _DIM, 1 if number & 1 else -1
