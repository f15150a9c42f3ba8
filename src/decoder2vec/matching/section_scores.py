"""How alike two sides are by meaning: every section with every section, and so every document with every other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import EncoderError, InputError, unknown_name
from decoder2vec.heads.standardise import Head
from decoder2vec.matching.sections import WHOLE, Section, sentences, split_sections
from decoder2vec.matching.sides import Document, Side
from decoder2vec.matching.terms import Scores

AGGREGATES = ("whole", "sections", "best")
"""A pair's score: of the whole texts; of each section with its best counterpart, by words; or of the best two alone."""
_LONGEST = 200
"""Words of a text that an encoder is given at once: all the usual ones take as much, and what is longer is cut."""


FEWEST_TO_FIT = 20
"""Texts below which the spread of a dimension is not known."""


class SupportsEncode(Protocol):
    """Anything that turns a list of texts into an array of vectors."""

    @property
    def encode(self) -> Callable[..., Any]:
        """A function of a list of texts that gives [n, dim] vectors."""


class Similarities:
    """The similarity of texts under an encoder; every text is read once, and no more is kept than its vector."""

    def __init__(self, encoder: SupportsEncode, **encode_kwargs: Any) -> None:
        self._encoder, self._kwargs = encoder, encode_kwargs
        self._vectors: dict[str, NDArray[Any]] = {}
        self._head: Head | None = None

    def read(self, texts: Sequence[str]) -> None:
        """Encode what is new among the texts, all at once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if not new:
            return
        vectors = np.asarray(self._encoder.encode(new, **self._kwargs))
        if not np.isfinite(vectors).all():
            raise EncoderError("The encoder gave vectors that are not finite; run `d2v doctor` on its model.")
        self._vectors.update(zip(new, vectors, strict=True))

    def standardised(self, texts: Sequence[str]) -> Similarities:
        """The same with every dimension given the same weight, fitted on these texts; nothing is read twice."""
        different = list(dict.fromkeys(texts))
        if len(different) < FEWEST_TO_FIT:
            raise InputError(
                f"{len(different)} different texts are too few to standardise on; give {FEWEST_TO_FIT} or leave it out."
            )
        self.read(different)
        other = copy(self)  # which shares the vectors
        other._head = Head.fit("standardise", np.stack([self._vectors[text] for text in different]))
        return other

    def __call__(self, left: Sequence[str], right: Sequence[str]) -> Scores:
        """[left, right] similarities: the encoder's own where it has one, else cosines."""
        self.read([*left, *right])
        a, b = (np.stack([self._vectors[text] for text in texts]) for texts in (left, right))
        if self._head:
            a, b = self._head(a), self._head(b)
        own = getattr(self._encoder, "similarity", None)
        if callable(own):
            return np.asarray(own(a, b), np.float64)
        a, b = (_unit(np.asarray(rows, np.float64)) for rows in (a, b))
        return np.asarray(a @ b.T)


@dataclass(frozen=True)
class SectionedSide:
    """A side cut into sections, and these into parts that fit into an encoder."""

    sections: list[list[Section]]
    parts: list[str]
    section_starts: NDArray[np.intp]
    """The first part of every section."""
    document_starts: NDArray[np.intp]
    """The first section of every document."""
    weights: Scores
    """Words of every section."""

    @classmethod
    def of(cls, side: Side, whole: bool = False) -> SectionedSide:
        """Cut every document by its headings, or take each as a whole."""
        sections = [[Section(WHOLE, full_text(one))] if whole else document_sections(one) for one in side.documents]
        flat = [section for some in sections for section in some]
        parts = [_parts(section.text) for section in flat]
        return cls(
            sections,
            [text for some in parts for text in some],
            _starts([len(some) for some in parts]),
            _starts([len(some) for some in sections]),
            np.array([section.words for section in flat], np.float64),
        )


def full_text(document: Document) -> str:
    """Everything a document says: its title, its text, and the sections that were given as fields."""
    given = [section.text for section in split_sections("", document.fields)]
    return "\n".join(filter(None, [document.title, document.text, *given]))


def document_sections(document: Document) -> list[Section]:
    """The sections of a document; its title belongs to the first."""
    sections = split_sections(document.text, document.fields)
    if not sections:  # nothing but a heading
        return [Section(WHOLE, full_text(document))]
    first, *others = sections
    text = "\n".join(filter(None, [document.title, first.text]))
    return [Section(first.kind, text, first.heading), *others]


def section_table(similarities: Similarities, left: SectionedSide, right: SectionedSide) -> Scores:
    """[sections, sections]: the best of their parts."""
    parts = similarities(left.parts, right.parts)
    return np.maximum.reduceat(np.maximum.reduceat(parts, left.section_starts, 0), right.section_starts, 1)


def document_scores(table: Scores, left: SectionedSide, right: SectionedSide, aggregate: str) -> Scores:
    """[documents, documents] from a table of sections."""
    if aggregate not in AGGREGATES:
        raise unknown_name("aggregate", aggregate, AGGREGATES)
    from_left = np.maximum.reduceat(table, right.document_starts, 1)
    from_right = np.maximum.reduceat(table, left.document_starts, 0)
    if aggregate == "best":
        return np.maximum.reduceat(from_left, left.document_starts, 0)
    return (_weighted(from_left, left, 0) + _weighted(from_right, right, 1)) / 2


def _weighted(best: Scores, side: SectionedSide, axis: int) -> Scores:
    """The mean over the sections of every document of one side, by their words."""
    weights = side.weights[:, None] if axis == 0 else side.weights[None]
    totals = np.add.reduceat(weights, side.document_starts, axis)
    return np.add.reduceat(weights * best, side.document_starts, axis) / totals


def _parts(text: str) -> list[str]:
    """A text in pieces of at most `_LONGEST` words, cut between sentences where it can be."""
    if len(text.split()) <= _LONGEST:
        return [text]
    pieces: list[list[str]] = [[]]
    for sentence in sentences(text):
        words = sentence.split()
        for begin in range(0, len(words), _LONGEST):
            some = words[begin : begin + _LONGEST]
            if pieces[-1] and len(pieces[-1]) + len(some) > _LONGEST:
                pieces.append([])
            pieces[-1] += some
    return [" ".join(piece) for piece in pieces]


def _starts(sizes: Sequence[int]) -> NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)


def _unit(rows: Scores) -> Scores:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
