"""Dense scores of two sides: similarities of all sections, aggregated to similarities of all documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import EncoderError, InputError, unknown_name
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.matching.boilerplate import is_formality
from decoder2vec.matching.sections import FORMALITIES, OFFER, WHOLE, Section, split_sections, split_statements
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.matching.terms import ScoreMatrix, TermWeights, TextTerms
from decoder2vec.maths.similarity import normalise
from decoder2vec.progress import current_progress

AGGREGATES = ("whole", "sections", "best")
"""The score of two documents: of their whole texts; the mean over sections of the best counterpart of each, weighted by
their terms, in both directions; or of their two most similar sections."""
MIN_TEXTS_TO_STANDARDISE = 20
"""With fewer texts the spread of a dimension cannot be estimated."""
_MIN_SECTION_WEIGHT = 0.1
"""Weight of a section without terms; other sections have the weights of their terms, a few units each."""
_MAX_PASSAGE_WORDS = 200
"""Words that an encoder reads at once; all common encoders take as many, and longer texts are split."""


class SupportsEncode(Protocol):
    """Anything that turns a list of texts into an array of vectors."""

    @property
    def encode(self) -> Callable[..., Any]:
        """Function of a list of texts that returns [texts, dim] vectors."""


class TextSimilarity:
    """Similarity of texts under an encoder; every text is encoded once, and only its vector is kept."""

    def __init__(self, encoder: SupportsEncode, **encode_kwargs: Any) -> None:
        self._encoder, self._kwargs = encoder, encode_kwargs
        self._vectors: dict[str, NDArray[Any]] = {}
        self._head: AffineHead | None = None

    def encode(self, texts: Sequence[str]) -> None:
        """Encode those of the texts that are new, in one call."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if not new:
            return
        current_progress().remaining_work = len(new)
        vectors = np.asarray(self._encoder.encode(new, **self._kwargs))
        if not np.isfinite(vectors).all():
            raise EncoderError("The encoder returned vectors that are not finite; run `d2v doctor` on its model.")
        self._vectors.update(zip(new, vectors, strict=True))

    def standardised(self, texts: Sequence[str]) -> TextSimilarity:
        """Return a copy that standardises every dimension, fitted on these texts; it shares the cached vectors."""
        distinct = list(dict.fromkeys(texts))
        if len(distinct) < MIN_TEXTS_TO_STANDARDISE:
            raise InputError(
                f"{len(distinct)} different texts are too few to standardise on; "
                f"give {MIN_TEXTS_TO_STANDARDISE} or more, or do not standardise."
            )
        self.encode(distinct)
        standardised = copy(self)  # shallow: the dictionary of vectors is shared
        standardised._head = AffineHead.fit("standardise", np.stack([self._vectors[text] for text in distinct]))
        return standardised

    def of_pairs(self, left: Sequence[str], right: Sequence[str]) -> NDArray[np.float64]:
        """Return [pairs] similarities of each left text with the right text beside it."""
        self.encode([*left, *right])
        return np.array([float(self([a], [b])[0, 0]) for a, b in zip(left, right, strict=True)])

    def __call__(self, left: Sequence[str], right: Sequence[str]) -> ScoreMatrix:
        """Return [left, right] similarities: the encoder's `similarity` if it has one, else cosines."""
        self.encode([*left, *right])
        a, b = (np.stack([self._vectors[text] for text in texts]) for texts in (left, right))
        if self._head:
            a, b = self._head(a), self._head(b)
        similarity = getattr(self._encoder, "similarity", None)
        if callable(similarity):
            return np.asarray(similarity(a, b), np.float64)
        a, b = (normalise(np.asarray(rows, np.float64)) for rows in (a, b))
        return np.asarray(a @ b.T)


@dataclass(frozen=True)
class SectionedSide:
    """A side split into sections, and these into passages that an encoder can read at once."""

    sections: list[list[Section]]
    """The sections of each document, without formalities."""
    passages: list[str]
    """The passages of all sections, in order."""
    passage_kinds: list[str]
    """The kind of the section of each passage."""
    section_starts: NDArray[np.intp]
    """Index of the first passage of every section."""
    document_starts: NDArray[np.intp]
    """Index of the first section of every document."""
    terms: list[list[TextTerms]]
    """The terms of the sections of each document."""

    @property
    def stems(self) -> list[frozenset[str]]:
        """The stems of the terms of each document."""
        return [frozenset().union(*(section.stems for section in document)) for document in self.terms]

    def passage_range(self, document: int) -> range:
        """Return the indices of the passages of a document."""
        starts = [*self.section_starts[self.document_starts], len(self.passages)]
        return range(int(starts[document]), int(starts[document + 1]))

    @classmethod
    def of(cls, side: Side, whole: bool = False) -> SectionedSide:
        """Split every document by its headings, or take each as one section if `whole`."""
        sections = [_whole(document) if whole else document_sections(document) for document in side.documents]
        flat = [section for document in sections for section in document]
        passages = [_split_passages(section.text) for section in flat]
        return cls(
            sections,
            [passage for section in passages for passage in section],
            [section.kind for section, of_section in zip(flat, passages, strict=True) for _ in of_section],
            _starts([len(section) for section in passages]),
            _starts([len(document) for document in sections]),
            [[TextTerms(section.text) for section in document] for document in sections],
        )


def full_text(document: SideDocument) -> str:
    """Return title, text and the fields that are sections, one after another."""
    field_texts = [section.text for section in split_sections("", document.fields)]
    return "\n".join(filter(None, [document.title, document.text, *field_texts]))


def document_sections(document: SideDocument) -> list[Section]:
    """Return the sections of a document that are about the work; its title belongs to the first.

    Benefits, contact data, legal notices and the like are left out, unless there is nothing else.
    """
    sections = split_sections(document.text, document.fields)
    sections = [_without_formalities(section) for section in sections if section.kind not in (FORMALITIES, OFFER)]
    sections = [section for section in sections if section.text]
    if not sections:  # a text that is only a heading, or only formalities
        return [Section(WHOLE, full_text(document))]
    first, *others = sections
    text = "\n".join(filter(None, [document.title, first.text]))
    return [Section(first.kind, text, first.heading), *others]


def _whole(document: SideDocument) -> list[Section]:
    return [Section(WHOLE, "\n".join(section.text for section in document_sections(document)))]


def _without_formalities(section: Section) -> Section:
    sentences = split_statements(section.text)
    kept = [sentence for sentence in sentences if not is_formality(sentence)]
    return section if len(kept) == len(sentences) else Section(section.kind, "\n".join(kept), section.heading)


def section_scores(passage_scores: ScoreMatrix, left: SectionedSide, right: SectionedSide) -> ScoreMatrix:
    """Return [left sections, right sections] similarities: the highest of their passages."""
    rows = np.maximum.reduceat(passage_scores, left.section_starts, 0)
    return np.maximum.reduceat(rows, right.section_starts, 1)


def document_scores(
    scores: ScoreMatrix, left: SectionedSide, right: SectionedSide, aggregate: str, weights: TermWeights
) -> ScoreMatrix:
    """Aggregate [left sections, right sections] scores to [left documents, right documents]."""
    if aggregate not in AGGREGATES:
        raise unknown_name("aggregate", aggregate, AGGREGATES)
    best_for_left = np.maximum.reduceat(scores, right.document_starts, 1)
    best_for_right = np.maximum.reduceat(scores, left.document_starts, 0)
    if aggregate == "best":
        return np.maximum.reduceat(best_for_left, left.document_starts, 0)
    for_left = _mean_over_sections(best_for_left, left, weights)
    return (for_left + _mean_over_sections(best_for_right.T, right, weights).T) / 2


def _mean_over_sections(best: ScoreMatrix, side: SectionedSide, weights: TermWeights) -> ScoreMatrix:
    """Mean over the sections (rows) of every document of one side, weighted by what their terms say."""
    of_sections = [weights.total(section.stems) for document in side.terms for section in document]
    section_weights = np.maximum(of_sections, _MIN_SECTION_WEIGHT)[:, None]
    totals = np.add.reduceat(section_weights, side.document_starts, 0)
    return np.asarray(np.add.reduceat(section_weights * best, side.document_starts, 0) / totals)


def _split_passages(text: str) -> list[str]:
    """Split a text into passages of limited length, between sentences where possible."""
    if len(text.split()) <= _MAX_PASSAGE_WORDS:
        return [text]
    passages: list[list[str]] = [[]]
    size = 0
    for sentence in split_statements(text):
        words = sentence.split()
        for start in range(0, len(words), _MAX_PASSAGE_WORDS):
            piece = words[start : start + _MAX_PASSAGE_WORDS]
            if size and size + len(piece) > _MAX_PASSAGE_WORDS:
                passages.append([])
                size = 0
            passages[-1].append(" ".join(piece))
            size += len(piece)
    return ["\n".join(passage) for passage in passages]


def _starts(sizes: Sequence[int]) -> NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
