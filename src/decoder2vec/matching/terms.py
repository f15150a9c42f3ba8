"""BM25 scores of two sides, and the terms that two documents share or that one of them lacks.

Words are lower-cased and stemmed; stop words are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder2vec.text.bm25 import BM25, stem, tokenise_words
from decoder2vec.text.concepts import Word, word_runs

ScoreMatrix = NDArray[np.float64]
"""[left, right] scores."""

Phrase = tuple[str, ...]
"""Stems of adjacent words."""

_MAX_PHRASE_WORDS = 3
"""Words of the longest phrase that is reported as one term."""


def bm25_scores(queries: Sequence[str], texts: Sequence[str]) -> ScoreMatrix:
    """Return [queries, texts] BM25 scores."""
    return BM25(texts, sorted(stop_words())).scores(queries).astype(np.float64)


def stemmed_words(texts: Sequence[str]) -> list[list[str]]:
    """Return the stems of each text, repeated ones included; English stop words are left out."""
    return tokenise_words(texts, sorted(stop_words()))


@cache
def stop_words() -> frozenset[str]:
    """Return English stop words: a longer list than that of search, since whole documents are compared, not queries."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS)


@dataclass(frozen=True)
class TermOverlap:
    """Terms of one text that another has or lacks; the rarest among all documents first."""

    matched: tuple[str, ...]
    """Words and phrases in both texts, as the first text writes them."""
    missing: tuple[str, ...]
    """Words that only the first text has."""


class TermRarity:
    """How rare each word is among the documents of both sides, by which terms are ordered."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._documents_with: Counter[str] = Counter()
        self._n_documents = 0
        for text in texts:
            self._n_documents += 1
            self._documents_with.update({word for phrase, _ in _phrases(text, 1) for word in phrase})

    def weight(self, phrase: Phrase) -> float:
        """Return the sum of log(documents / documents with the word) over the words of a phrase."""
        return sum(math.log((self._n_documents + 1) / (self._documents_with[word] + 0.5)) for word in phrase)

    def compare(self, text: str, other: str, max_terms: int = 10) -> TermOverlap:
        """Return the terms of `text` that `other` has and those it lacks, at most `max_terms` of each."""
        written = dict(_first_occurrences(_phrases(text, _MAX_PHRASE_WORDS)))
        other_phrases = {phrase for phrase, _ in _phrases(other, _MAX_PHRASE_WORDS)}
        other_words = {word for phrase in other_phrases for word in phrase}
        shared = [phrase for phrase in written if phrase in other_phrases]
        shared = [phrase for phrase in shared if not any(_is_inside(phrase, longer) for longer in shared)]
        missing: list[Phrase] = [phrase for phrase in written if len(phrase) == 1 and phrase[0] not in other_words]
        return TermOverlap(self._rarest(shared, written, max_terms), self._rarest(missing, written, max_terms))

    def _rarest(self, phrases: list[Phrase], written: dict[Phrase, str], count: int) -> tuple[str, ...]:
        ordered = sorted(phrases, key=lambda phrase: -self.weight(phrase))  # stable: ties keep the order of the text
        return tuple(written[phrase] for phrase in ordered[:count])


def _phrases(text: str, max_words: int) -> Iterator[tuple[Phrase, str]]:
    """Yield every phrase of up to `max_words` adjacent content words, as stems and as written."""
    for run in word_runs(text):
        content: list[Word] = []
        for word in [*run, None]:
            if word is not None and _is_content_word(word[0]):
                content.append(word)
                continue
            for length in range(1, min(max_words, len(content)) + 1):
                for start in range(len(content) - length + 1):
                    words = content[start : start + length]
                    yield tuple(stem(plain) for plain, _, _ in words), text[words[0][1] : words[-1][2]]
            content = []


def _is_content_word(word: str) -> bool:
    return len(word) > 1 and not word.isdigit() and word not in stop_words()


def _first_occurrences(phrases: Iterable[tuple[Phrase, str]]) -> Iterator[tuple[Phrase, str]]:
    seen: set[Phrase] = set()
    for phrase, written in phrases:
        if phrase not in seen:
            seen.add(phrase)
            yield phrase, " ".join(written.split())


def _is_inside(phrase: Phrase, longer: Phrase) -> bool:
    size = len(phrase)
    return size < len(longer) and any(longer[at : at + size] == phrase for at in range(len(longer) - size + 1))
