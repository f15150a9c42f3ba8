"""Scores by meaning and by words made one, for every row of a table of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.stats import rankdata

from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.matching.section_scores import (
    AGGREGATES,
    SectionedSide,
    Similarities,
    SupportsEncode,
    document_scores,
    full_text,
    section_table,
)
from decoder2vec.matching.sections import SentencePair, best_pairs, sentences
from decoder2vec.matching.sides import Side
from decoder2vec.matching.terms import Scores, Terms, TermWeights, lexical_scores

_RRF = 60
"""The constant of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""


def _between_0_and_1(scores: Scores) -> Scores:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.where(high > low, (scores - low) / np.where(high > low, high - low, 1.0), 0.0)


def _standardised(scores: Scores) -> Scores:
    spread = scores.std(1, keepdims=True)
    return np.where(spread > 0, (scores - scores.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0), 0.0)


def _by_rank(scores: Scores) -> Scores:
    """1 / (60 + rank); equal scores share the best of their ranks."""
    ranks: Scores = rankdata(-scores, method="min", axis=1)
    return 1.0 / (_RRF + ranks)


FUSIONS: dict[str, Callable[[Scores], Scores]] = {"minmax": _between_0_and_1, "zscore": _standardised, "rrf": _by_rank}
"""How the scores of a row are brought to one scale."""


def fuse(dense: Scores, lexical: Scores, weight: float, name: str = "minmax") -> Scores:
    """`weight` of the dense scores and the rest of the lexical ones, each row brought to one scale first."""
    if name not in FUSIONS:
        raise unknown_name("fusion", name, FUSIONS)
    if not 0 <= weight <= 1:
        raise InputError(f"The weight of the dense scores is {weight}; give a number from 0 to 1.")
    return weight * FUSIONS[name](dense) + (1 - weight) * FUSIONS[name](lexical)


@dataclass(frozen=True)
class MatchChoices:
    """What a match is made of."""

    weight: float = 0.8
    """Of the scores by meaning; the rest is BM25's."""
    fusion: str = "minmax"
    """How both are brought to one scale: minmax, zscore or rrf."""
    aggregate: str = "sections"
    """How the sections of two documents make one score: whole, sections or best."""
    standardise: bool = False
    """Give every dimension of a vector the same weight, fitted on the documents of both sides."""
    top: int = 5
    """Matches that are shown for every document."""
    pairs: int = 3
    """Sentence pairs that are shown for a match."""

    def __post_init__(self) -> None:
        for kind, name, known in (("fusion", self.fusion, FUSIONS), ("aggregate", self.aggregate, AGGREGATES)):
            if name not in known:
                raise unknown_name(kind, name, known)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense scores is {self.weight}; give a number from 0 to 1.")
        if self.top < 1 or self.pairs < 0:
            raise InputError("Give 1 match or more to show, and 0 sentence pairs or more.")


@dataclass(frozen=True)
class SectionScore:
    """A section of the left document, the section of the right one that fits it best, and how well."""

    left: str
    right: str
    score: float


@dataclass(frozen=True)
class Reasons:
    """Why two documents match, as far as one can say."""

    sections: list[SectionScore]
    terms: Terms
    pairs: list[SentencePair]
    layers: list[tuple[str, float]] = field(default_factory=list)
    """What each layer contributes, for the first match of a document and where the encoder can say."""


@dataclass(frozen=True)
class Match:
    """One line of a ranking."""

    left: int
    right: int
    score: float
    """By meaning and by words together; comparable within one ranking only."""
    dense: float
    lexical: float


@dataclass(frozen=True)
class Matching:
    """Everything that a match found."""

    left: Side
    right: Side
    choices: MatchChoices
    for_left: list[list[Match]]
    """For every document of the left side those of the right one, best first."""
    for_right: list[list[Match]]
    """The other way round."""
    reasons: dict[tuple[int, int], Reasons]
    """Of every pair that `for_left` shows."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, documents by their ids."""
        return {
            "left": self.left.name,
            "right": self.right.name,
            "choices": asdict(self.choices),
            "skipped": {"left": self.left.skipped, "right": self.right.skipped},
            "for_left": [self._ranking(rows, True) for rows in self.for_left],
            "for_right": [self._ranking(rows, False) for rows in self.for_right],
        }

    def _ranking(self, rows: Iterable[Match], with_reasons: bool) -> list[dict[str, Any]]:
        return [
            {
                "left": self.left.documents[row.left].id,
                "right": self.right.documents[row.right].id,
                "score": round(row.score, 4),
                "dense": round(row.dense, 4),
                "lexical": round(row.lexical, 3),
                **({"reasons": asdict(self.reasons[row.left, row.right])} if with_reasons else {}),
            }
            for row in rows
        ]


@dataclass(frozen=True)
class SideScores:
    """All scores of two sides: what rankings are made of."""

    dense: Scores
    lexical: Scores
    """The left texts asked, the right ones searched."""
    lexical_back: Scores
    """The right texts asked, the left ones searched; also [left, right]."""

    def for_left(self, choices: MatchChoices) -> Scores:
        """[left, right]: scores for every left document, comparable within its row."""
        return fuse(self.dense, self.lexical, choices.weight, choices.fusion)

    def for_right(self, choices: MatchChoices) -> Scores:
        """[left, right]: scores for every right document, comparable within its column."""
        return fuse(self.dense.T, self.lexical_back.T, choices.weight, choices.fusion).T


def score_sides(left: Side, right: Side, similarities: Similarities, aggregate: str = "sections") -> SideScores:
    """Every document of one side with every one of the other."""
    for side in (left, right):
        if not side.documents:
            raise InputError(f"The side {side.name!r} holds no document; there is nothing to match.")
    a, b = (SectionedSide.of(side, whole=aggregate == "whole") for side in (left, right))
    dense = document_scores(section_table(similarities, a, b), a, b, aggregate)
    texts, others = ([full_text(one) for one in side.documents] for side in (left, right))
    return SideScores(dense, lexical_scores(texts, others), lexical_scores(others, texts).T)


def match_sides(
    left: Side, right: Side, encoder: SupportsEncode, choices: MatchChoices | None = None, **encode_kwargs: Any
) -> Matching:
    """Rank each side for every document of the other, and give the reasons of the matches shown for the left one."""
    choices = choices or MatchChoices()
    similarities = Similarities(encoder, **encode_kwargs)
    if choices.standardise:
        similarities = similarities.standardised([full_text(one) for side in (left, right) for one in side.documents])
    scores = score_sides(left, right, similarities, choices.aggregate)
    for_left, for_right = scores.for_left(choices), scores.for_right(choices)

    def ranking(table: Scores, lexical: Scores, places: list[tuple[int, int]]) -> list[Match]:
        return [Match(i, j, float(table[i, j]), float(scores.dense[i, j]), float(lexical[i, j])) for i, j in places]

    best = [
        ranking(for_left, scores.lexical, [(i, int(j)) for j in _order(for_left[i])[: choices.top]])
        for i in range(len(left))
    ]
    back = [
        ranking(for_right, scores.lexical_back, [(int(i), j) for i in _order(for_right[:, j])[: choices.top]])
        for j in range(len(right))
    ]
    shown = {(row.left, row.right) for rows in best for row in rows}
    first = {(rows[0].left, rows[0].right) for rows in best}
    explainer = _Explainer(left, right, encoder, similarities, choices)
    return Matching(left, right, choices, best, back, explainer(shown, first))


def _order(scores: Scores) -> Any:
    return np.argsort(-scores, kind="stable")


class _Explainer:
    """Finds the reasons of pairs; what they have in common is read once."""

    def __init__(
        self, left: Side, right: Side, encoder: SupportsEncode, similarities: Similarities, choices: MatchChoices
    ) -> None:
        self._left, self._right = SectionedSide.of(left), SectionedSide.of(right)
        self._texts = [[full_text(one) for one in side.documents] for side in (left, right)]
        self._similarities, self._choices = similarities, choices
        self._explain = getattr(encoder, "explain", None)
        self._weights = TermWeights([*self._texts[0], *self._texts[1]])

    def __call__(self, pairs: set[tuple[int, int]], first: set[tuple[int, int]]) -> dict[tuple[int, int], Reasons]:
        """The reasons of all pairs; what the layers say only of the first ones, since both texts are read for it."""
        table = section_table(self._similarities, self._left, self._right)
        said = [{place: sentences(self._texts[side][place]) for place in {p[side] for p in pairs}} for side in (0, 1)]
        if self._choices.pairs:
            self._similarities.read([one for side in said for some in side.values() for one in some])
        return {
            (i, j): Reasons(
                self._sections(table, i, j),
                self._weights.compare(self._texts[0][i], self._texts[1][j]),
                best_pairs(said[0][i], said[1][j], self._similarities, self._choices.pairs),
                self._layers(i, j) if (i, j) in first else [],
            )
            for i, j in sorted(pairs)
        }

    def _sections(self, table: Scores, i: int, j: int) -> list[SectionScore]:
        row, column = int(self._left.document_starts[i]), int(self._right.document_starts[j])
        mine, theirs = self._left.sections[i], self._right.sections[j]
        block = table[row : row + len(mine), column : column + len(theirs)]
        best = block.argmax(1)
        return [
            SectionScore(one.shown, theirs[at].shown, float(scores[at]))
            for one, at, scores in zip(mine, best, block, strict=True)
        ]

    def _layers(self, i: int, j: int) -> list[tuple[str, float]]:
        if self._explain is None:
            return []
        try:
            found = self._explain(self._texts[0][i], self._texts[1][j])
        except UnsupportedError:
            self._explain = None  # it will not be able to for the others either
            return []
        return [(str(reading), one) for reading, one in zip(found.readings, found.contributions, strict=True)]
