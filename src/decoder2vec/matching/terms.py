"""Terms of documents: how much they say, the share that two documents have in common, and what one of them lacks.

A term is a word or phrase that may name a skill: no stop word, no number, no word that names nothing. Words are
lower-cased and stemmed; C++, .NET and Node.js are words. How much a term says depends on how few documents have it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.matching.boilerplate import NAMES_LIKE_WORDS, is_common, names_no_skill, without_contact_data
from decoder2vec.text.bm25 import BM25, stem, tokenise_words
from decoder2vec.text.concepts import word_runs

ScoreMatrix = NDArray[np.float64]
"""[left, right] scores."""

Phrase = tuple[str, ...]
"""Stems of adjacent words."""

TermWord = tuple[str, int, int]
"""Stem of a word, and its begin and end in the text."""

_MAX_PHRASE_WORDS = 3
"""Words of the longest phrase that is reported as one term."""
_REQUIRED_FACTOR = 2.0
"""Weight of a term in a section of skills or requirements, compared with one anywhere else."""
_NAME_FACTOR = 0.25
"""Weight of a capitalised term that no other document has: more often the name of a town or firm than of a skill."""
_COMMON_SHARE = 0.5
"""Share of documents that count as having a common word, at least, such as "support" or "quality"."""
_NAME_WITH_SIGNS = re.compile(
    r"""(?<![\w.@/])(?:
    [a-z]\w*(?:\+\+|\#) | (?:[a-z]\w*)?\.net | [a-z]\w*\.js | [a-z]&[a-z] | [b-df-z]-[a-z]+ | objective-c
    )(?![\w@])""",
    re.IGNORECASE | re.VERBOSE,
)
"""Names that other signs than letters belong to: C++, C#, .NET, ASP.NET, Node.js, R&D, X-ray, T-SQL."""


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


class TextTerms:
    """The terms of one text, found once and compared many times."""

    def __init__(self, text: str) -> None:
        self.text, self._runs = text, list(_term_runs(text))
        self.stems = frozenset(word for run in self._runs for word, _, _ in run)

    @cached_property
    def phrases(self) -> dict[Phrase, str]:
        """Phrases of up to three words -> as written at the first place."""
        phrases: dict[Phrase, str] = {}
        for run in self._runs:
            for length in range(1, min(_MAX_PHRASE_WORDS, len(run)) + 1):
                for start in range(len(run) - length + 1):
                    self._add(phrases, run[start : start + length])
        return phrases

    def missing_from(self, stems: Set[str]) -> dict[Phrase, str]:
        """Return the longest phrases of which no word is among these stems, cut to three words."""
        missing: dict[Phrase, str] = {}
        for run in self._runs:
            phrase: list[TermWord] = []
            for word in run:
                is_missing = word[0] not in stems
                if phrase and (not is_missing or len(phrase) == _MAX_PHRASE_WORDS):
                    self._add(missing, phrase)
                    phrase = []
                if is_missing:
                    phrase.append(word)
            if phrase:
                self._add(missing, phrase)
        return missing

    def _add(self, phrases: dict[Phrase, str], words: Sequence[TermWord]) -> None:
        written = " ".join(self.text[words[0][1] : words[-1][2]].split())
        phrases.setdefault(tuple(word for word, _, _ in words), written)


class TermWeights:
    """How much each term says, by the number of documents that have it; common words say little.

    Args:
        documents: The stems of each document.
        background: Weights by other documents.
        trust: Weight of the documents, from 0 to 1; the background has the remainder.
    """

    def __init__(
        self, documents: Iterable[Set[str]], background: TermWeights | None = None, trust: float = 1.0
    ) -> None:
        self._background, self._trust = background, trust
        self.n_documents_with: Counter[str] = Counter()
        self._n_documents = 0
        for stems in documents:
            self.n_documents_with.update(stems)
            self._n_documents += 1

    def __call__(self, stem: str) -> float:
        """Return log(documents / documents with the term): its inverse document frequency."""
        share = self._share_with(stem)
        return -math.log(max(share, _COMMON_SHARE) if is_common(stem) else share)

    def _share_with(self, stem: str) -> float:
        share = (self.n_documents_with[stem] + 0.5) / (self._n_documents + 1)
        if self._background is None:
            return share
        return self._trust * share + (1 - self._trust) * self._background._share_with(stem)

    def total(self, stems: Iterable[str]) -> float:
        """Return the sum of the weights of distinct terms."""
        return sum(map(self, sorted(set(stems))))  # sorted: floats depend on the order in which they are added


def shared_terms(left: Sequence[Set[str]], right: Sequence[Set[str]], weights: TermWeights) -> ScoreMatrix:
    """Return [left, right] shares of terms in common, weighted by what they say: 1 for equal terms, 0 for none.

    It is the mean of two shares: of the terms of the left document, and of those of the right one.
    """
    vocabulary = {word: index for index, word in enumerate(sorted(set().union(*left, *right)))}
    values = np.array([weights(word) for word in vocabulary])
    a, b = (_incidence(documents, vocabulary) for documents in (left, right))
    common = np.asarray((a.multiply(values).tocsr() @ b.T).todense(), np.float64).reshape(len(left), len(right))
    totals = [np.asarray(matrix @ values, np.float64) for matrix in (a, b)]
    of_left, of_right = (np.where(total > 0, total, 1.0) for total in totals)
    return (common / of_left[:, None] + common / of_right[None]) / 2


def _incidence(documents: Sequence[Set[str]], vocabulary: dict[str, int]) -> Any:
    """Return a sparse [documents, words] matrix: 1 where a document has a word."""
    from scipy.sparse import csr_matrix

    columns = [vocabulary[word] for document in documents for word in document]
    ends = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    return csr_matrix((np.ones(len(columns)), columns, ends), (len(documents), len(vocabulary)))


@dataclass(frozen=True)
class TermOverlap:
    """Terms of one document that another has or lacks; those that say most come first."""

    matched: tuple[str, ...]
    """Words and phrases in both documents, as the first one writes them."""
    missing: tuple[str, ...]
    """Words and phrases that only the first one has."""


def compare_terms(
    text: TextTerms, other: TextTerms, weights: TermWeights, required: Set[str] = frozenset(), max_terms: int = 8
) -> TermOverlap:
    """Return the terms of a text that another has and those it lacks, at most `max_terms` of each.

    Args:
        text: The text whose terms are looked for.
        other: The text in which they are looked for.
        weights: What each term says.
        required: Stems of terms that count more: those of skills and requirements.
        max_terms: Maximum number of terms of each kind.
    """

    def importance(phrase: Phrase, written: str) -> float:
        weight = weights.total(phrase) / len(phrase)
        is_unique = all(weights.n_documents_with[word] <= 1 for word in phrase)
        if is_unique and written[0].isupper() and re.search(rf"[\w,] {re.escape(written)}", text.text):
            weight *= _NAME_FACTOR  # a capital inside a sentence
        return weight * (_REQUIRED_FACTOR if not required.isdisjoint(phrase) else 1.0)

    def best(phrases: dict[Phrase, str]) -> tuple[str, ...]:
        ordered = sorted(phrases.items(), key=lambda item: -importance(*item))  # stable: ties as in the text
        return tuple({written.casefold(): written for _, written in ordered}.values())[:max_terms]

    shared = {phrase: written for phrase, written in text.phrases.items() if phrase in other.phrases}
    inner = _inner_phrases(shared)
    longest = {phrase: written for phrase, written in shared.items() if phrase not in inner}
    return TermOverlap(best(longest), best(text.missing_from(other.stems)))


def _term_runs(text: str) -> Iterator[list[TermWord]]:
    """Yield runs of adjacent words that may be terms; any other word and a line break end a run."""
    begin = 0
    for line in text.splitlines(keepends=True):
        plain = without_contact_data(line)
        # as one word of the same length, so that offsets stay the same
        spelled = _NAME_WITH_SIGNS.sub(lambda match: "x" * len(match[0]), plain)
        for run in word_runs(spelled):
            terms: list[TermWord] = []
            for word, start, end in run:
                word = word if spelled[start:end] == plain[start:end] else plain[start:end].lower()
                if _is_term_word(word, plain, start, end):
                    terms.append((stem(word), begin + start, begin + end))
                elif terms:
                    yield terms
                    terms = []
            if terms:
                yield terms
        begin += len(line)


def _is_term_word(word: str, line: str, start: int, end: int) -> bool:
    if names_no_skill(word, line, start, end):
        return False
    return word in NAMES_LIKE_WORDS or (len(word) > 1 and word not in stop_words())


def _inner_phrases(phrases: Iterable[Phrase]) -> set[Phrase]:
    """Return the phrases that are a part of a longer one."""
    return {
        phrase[start : start + length]
        for phrase in phrases
        for length in range(1, len(phrase))
        for start in range(len(phrase) - length + 1)
    }
