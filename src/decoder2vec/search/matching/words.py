"""Words as a match counts them: in small letters, cut to their stems, without those that say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder2vec.text.bm25 import BM25, words_of

Scores = NDArray[np.float64]


def lexical_scores(queries: Sequence[str], texts: Sequence[str]) -> Scores:
    """[queries, texts] BM25 scores."""
    return BM25(texts, sorted(stop_words())).scores(queries).astype(np.float64)


def tokens(texts: Sequence[str]) -> list[list[str]]:
    """The stems of every text, as often as they stand there; English stop words are left out."""
    return words_of(texts, sorted(stop_words()))


@cache
def stop_words() -> frozenset[str]:
    """Words that no match is made of: a longer list than a search has, since job titles are no queries."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS)
