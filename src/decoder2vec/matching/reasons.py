"""Why two documents match: similar sections and sentences, shared and missing terms, contributions of layers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decoder2vec.errors import UnsupportedError
from decoder2vec.matching.boilerplate import is_common, is_formality
from decoder2vec.matching.section_scores import SectionedSide, SupportsEncode, TextSimilarity, full_text, section_scores
from decoder2vec.matching.sections import COMPANY, SentencePair, best_sentence_pairs, split_sentences
from decoder2vec.matching.sides import Side
from decoder2vec.matching.terms import ScoreMatrix, TermOverlap, TermWeights, TextTerms, compare_terms

_REQUIRED_KINDS = ("skills", "requirements")
_MIN_SENTENCE_TERMS = 2
"""A sentence with fewer terms is about nothing: "Excellent communication skills are required"."""
_PASSAGE_PAIRS = 2
"""Pairs of passages of two documents in which similar sentences are looked for."""


@dataclass(frozen=True)
class SectionScore:
    """A section of the left document, the most similar section of the right one, and their similarity."""

    left: str
    right: str
    score: float


@dataclass(frozen=True)
class Reasons:
    """Why two documents match: similar sections, shared and missing terms, similar sentences, layers."""

    sections: list[SectionScore]
    terms: TermOverlap
    pairs: list[SentencePair]
    layers: list[tuple[str, float]] = field(default_factory=list)
    """Contribution of each layer, for the first match of a document and if the encoder can explain."""


@dataclass(kw_only=True)
class Explainer:
    """Finds the reasons of pairs of documents; what belongs to one document is computed once."""

    sides: tuple[Side, Side]
    sections: tuple[SectionedSide, SectionedSide]
    """The sections of both sides; they may have more documents than the sides."""
    passages: ScoreMatrix
    """[left passages, right passages] similarities."""
    similarity: TextSimilarity
    encoder: SupportsEncode
    """Its `explain` is used if it has one."""
    max_pairs: int
    """Sentence pairs of a pair of documents."""
    min_similarity: float
    """Sentences that are less similar are no reason."""

    def __post_init__(self) -> None:
        left, right = self.sections
        self._weights = TermWeights([*left.stems, *right.stems])  # a term that all documents have is no reason
        self._scores = section_scores(self.passages, left, right)
        self._explain = getattr(self.encoder, "explain", None)
        self._terms: list[dict[int, TextTerms]] = [{}, {}]
        self._sentences: dict[str, list[str]] = {}

    def __call__(self, pairs: set[tuple[int, int]], first: set[tuple[int, int]]) -> dict[tuple[int, int], Reasons]:
        """Return the reasons of all pairs; those of layers only for the `first` pairs, since both texts are encoded."""
        ordered = sorted(pairs)
        sentences = [self._candidate_sentences(i, j) for i, j in ordered] if self.max_pairs else []
        self.similarity.encode([sentence for both in sentences for side in both for sentence in side])
        return {
            (i, j): Reasons(
                self._section_scores(i, j),
                self._compare_terms(i, j),
                self._sentence_pairs(*sentences[n]) if sentences else [],
                self._layer_contributions(i, j) if (i, j) in first else [],
            )
            for n, (i, j) in enumerate(ordered)
        }

    def _compare_terms(self, i: int, j: int) -> TermOverlap:
        sections = self.sections[0]
        kinds = [section.kind for section in sections.sections[i]]
        required = [
            terms.stems for kind, terms in zip(kinds, sections.terms[i], strict=True) if kind in _REQUIRED_KINDS
        ]
        stems = frozenset().union(*required)
        return compare_terms(self._document_terms(0, i), self._document_terms(1, j), self._weights, stems)

    def _document_terms(self, side: int, document: int) -> TextTerms:
        """Return the terms of a document; what it says about the employer names no skill."""
        if document not in self._terms[side]:
            sections = self.sections[side].sections[document]
            about_work = [section.text for section in sections if section.kind != COMPANY]
            texts = about_work or [section.text for section in sections]
            self._terms[side][document] = TextTerms("\n".join(texts))
        return self._terms[side][document]

    def _candidate_sentences(self, i: int, j: int) -> tuple[list[str], list[str]]:
        """Return the sentences of the most similar passages; only these are encoded one by one."""
        left, right = self.sections[0].passage_range(i), self.sections[1].passage_range(j)
        block = self.passages[left.start : left.stop, right.start : right.stop].copy()
        chosen: tuple[list[str], list[str]] = ([], [])
        for _ in range(min(_PASSAGE_PAIRS, *block.shape)):
            row, column = divmod(int(block.argmax()), block.shape[1])
            for side, passage in enumerate((left[row], right[column])):
                chosen[side].extend(self._informative_sentences(side, passage))
            block[row, :] = block[:, column] = -np.inf
        return chosen

    def _sentence_pairs(self, left: list[str], right: list[str]) -> list[SentencePair]:
        def mean_weight(sentence: str) -> float:
            stems = TextTerms(sentence).stems
            return self._weights.total(stems) / max(1, len(stems))

        pairs = best_sentence_pairs(left, right, self.similarity, self.max_pairs, mean_weight)
        return [pair for pair in pairs if pair.similarity >= self.min_similarity]

    def _informative_sentences(self, side: int, passage: int) -> list[str]:
        """Return the sentences of a passage that are about the work, and none of a passage about the employer."""
        sections, text = self.sections[side], self.sections[side].passages[passage]
        if sections.passage_kinds[passage] == COMPANY:
            return []
        if text not in self._sentences:
            sentences = dict.fromkeys(split_sentences(text))
            self._sentences[text] = [sentence for sentence in sentences if is_informative(sentence)]
        return self._sentences[text]

    def _section_scores(self, i: int, j: int) -> list[SectionScore]:
        left, right = self.sections
        row, column = int(left.document_starts[i]), int(right.document_starts[j])
        left_sections, right_sections = left.sections[i], right.sections[j]
        block = self._scores[row : row + len(left_sections), column : column + len(right_sections)]
        return [
            SectionScore(section.display_name, right_sections[best].display_name, float(section_row[best]))
            for section, best, section_row in zip(left_sections, block.argmax(1), block, strict=True)
        ]

    def _layer_contributions(self, i: int, j: int) -> list[tuple[str, float]]:
        if self._explain is None:
            return []
        try:
            left, right = self.sides
            explanation = self._explain(full_text(left.documents[i]), full_text(right.documents[j]))
        except UnsupportedError:
            self._explain = None  # it cannot explain other pairs either
            return []
        return [
            (str(reading), contribution)
            for reading, contribution in zip(explanation.readings, explanation.contributions, strict=True)
        ]


def is_informative(sentence: str) -> bool:
    """Whether a sentence is about the work: no formality, and with two terms or more that are not common words.

    A text of a script without spaces has too few words to count.
    """
    if is_formality(sentence):
        return False
    n_terms = sum(not is_common(stem) for stem in TextTerms(sentence).stems)
    return n_terms >= _MIN_SENTENCE_TERMS or not any(map(str.isascii, sentence.split()))
