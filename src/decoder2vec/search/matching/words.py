"""Words as a match counts them: in small letters, cut to their stems, without those that say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import MissingExtraError

Scores = NDArray[np.float64]


def lexical_scores(queries: Sequence[str], texts: Sequence[str]) -> Scores:
    """[queries, texts] BM25 scores as bm25s computes them (Lucene's variant, k1 1.5, b 0.75)."""
    wanted, held = tokens(queries), tokens(texts)
    scores = np.zeros((len(queries), len(texts)))
    if not any(held):  # bm25s cannot index texts without a word
        return scores
    retriever = _bm25s().BM25()
    retriever.index(held, show_progress=False)
    known = set(retriever.vocab_dict)
    for row, words in enumerate(wanted):
        if words := [word for word in words if word in known]:
            scores[row] = retriever.get_scores(words)
    return scores


def tokens(texts: Sequence[str]) -> list[list[str]]:
    """The stems of every text, as often as they stand there; English stop words are left out."""
    found: list[list[str]] = _bm25s().tokenize(
        list(texts), stopwords=sorted(stop_words()), stemmer=_stemmer(), return_ids=False, show_progress=False
    )
    return found


@cache
def stem(word: str) -> str:
    """The stem of a word in small letters: "engineer" for "engineers"."""
    stemmed: str = _stemmer().stemWord(word)
    return stemmed


@cache
def stop_words() -> frozenset[str]:
    """Words that no match is made of."""
    _bm25s()
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS)


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtraError("bm25s", "match") from None
    return bm25s


@cache
def _stemmer() -> Any:
    try:
        import Stemmer
    except ImportError:
        raise MissingExtraError("PyStemmer", "match") from None
    return Stemmer.Stemmer("english")
