"""Words as a match counts them: in small letters, cut to their stems, without those that say nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder2vec.text.bm25 import BM25, stem, words_of
from decoder2vec.text.concepts import Word, word_runs

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


_LONGEST = 3
"""Words of the longest phrase that is shown as one term."""

Phrase = tuple[str, ...]
"""Stems of words that stand side by side."""


@dataclass(frozen=True)
class Terms:
    """What a text asks for, as the other text has it or not; the rarest among all documents first."""

    matched: tuple[str, ...]
    """Words and phrases that stand in both, as the first text writes them."""
    missing: tuple[str, ...]
    """Words that only the first has."""


class TermWeights:
    """How rare every word is among the documents of both sides: what stands in all of them says little."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._in: Counter[str] = Counter()
        self._documents = 0
        for text in texts:
            self._documents += 1
            self._in.update({word for phrase, _ in _phrases(text, 1) for word in phrase})

    def weight(self, phrase: Phrase) -> float:
        """The sum of log(documents / documents with it) over the words of a phrase."""
        return sum(math.log((self._documents + 1) / (self._in[word] + 0.5)) for word in phrase)

    def compare(self, wanted: str, held: str, most: int = 10) -> Terms:
        """At most so many terms of `wanted` that `held` has, and that it lacks."""
        here = dict(_shown_once(_phrases(wanted, _LONGEST)))
        there = {phrase for phrase, _ in _phrases(held, _LONGEST)}
        shared = [phrase for phrase in here if phrase in there]
        shared = [phrase for phrase in shared if not any(_inside(phrase, other) for other in shared)]
        words = {word for phrase in there for word in phrase}
        lacking: list[Phrase] = [phrase for phrase in here if len(phrase) == 1 and phrase[0] not in words]
        return Terms(self._best(shared, here, most), self._best(lacking, here, most))

    def _best(self, phrases: list[Phrase], shown: dict[Phrase, str], most: int) -> tuple[str, ...]:
        ordered = sorted(phrases, key=lambda phrase: -self.weight(phrase))  # stable: equal ones as the text has them
        return tuple(shown[phrase] for phrase in ordered[:most])


def _phrases(text: str, longest: int) -> Iterator[tuple[Phrase, str]]:
    """Every phrase of up to so many telling words side by side, as stems and as it is written."""
    for run in word_runs(text):
        telling: list[Word] = []
        for word in [*run, None]:
            if word is not None and _telling(word[0]):
                telling.append(word)
                continue
            for length in range(1, min(longest, len(telling)) + 1):
                for begin in range(len(telling) - length + 1):
                    part = telling[begin : begin + length]
                    yield tuple(stem(plain) for plain, _, _ in part), text[part[0][1] : part[-1][2]]
            telling = []


def _telling(word: str) -> bool:
    return len(word) > 1 and not word.isdigit() and word not in stop_words()


def _shown_once(phrases: Iterable[tuple[Phrase, str]]) -> Iterator[tuple[Phrase, str]]:
    seen: set[Phrase] = set()
    for phrase, shown in phrases:
        if phrase not in seen:
            seen.add(phrase)
            yield phrase, " ".join(shown.split())


def _inside(phrase: Phrase, other: Phrase) -> bool:
    """Whether a phrase is a part of a longer one."""
    size = len(phrase)
    return size < len(other) and any(other[at : at + size] == phrase for at in range(len(other) - size + 1))
