"""Match two sides: rank each side for every document of the other, by meaning and by words, and give the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.matching.section_scores import (
    AGGREGATES,
    SectionedSide,
    SupportsEncode,
    TextSimilarity,
    document_scores,
    full_text,
    section_scores,
)
from decoder2vec.matching.sections import SentencePair, best_sentence_pairs, split_sentences
from decoder2vec.matching.sides import Side, SideSource, to_side
from decoder2vec.matching.terms import ScoreMatrix, TermOverlap, TermRarity, bm25_scores
from decoder2vec.progress import current_progress
from decoder2vec.search.store import resolve_encoder

_RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""
_WORDS_OF_PASSAGE, _WORDS_OF_SENTENCE = 60, 15
"""Usual lengths, from which the work is estimated."""


def match(
    left: SideSource,
    right: SideSource,
    encoder: SupportsEncode | str | Path = DEFAULT_ENCODER,
    *,
    top: int = 5,
    weight: float = 0.8,
    fusion: str = "minmax",
    aggregate: str = "sections",
    standardise: bool = False,
    pairs: int = 3,
    encoder_options: Mapping[str, Any] | None = None,
    **encode_kwargs: Any,
) -> Matching:
    """Match two sides, such as jobs and resumes: rank each for every document of the other, with reasons.

    Args:
        left: A .jsonl, .csv, .tsv or .xlsx file, a folder of .txt, .md, .pdf, .docx and other files, a `Side`, or a
            list of texts and dicts with `text` and optionally `id`, `title`, `name` and sections such as `skills`.
        right: The other side, as `left`.
        encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder; by default the
            built-in encoder.
        top: Matches to keep for every document.
        weight: Weight of the dense score, from 0 to 1; BM25 has the remainder.
        fusion: How both scores are brought to one scale: "minmax", "zscore" or "rrf".
        aggregate: What dense scores compare: "sections", "whole" texts, or the "best" two sections alone.
        standardise: Give every dimension of the vectors the same weight, fitted on the documents of both sides (20 or
            more); for encoders that were not trained.
        pairs: Sentence pairs to keep for every match of a left document.
        encoder_options: Options of `Encoder.from_pretrained` (layer, pooling, device ...), where `encoder` is a name.
        encode_kwargs: Passed to `encoder.encode`, such as `show_progress_bar`.

    Returns:
        The rankings of both directions, and the reasons of all matches of left documents.

    Raises:
        InputError: An option has no valid value, a side is empty, or `standardise` has too few texts.
        DataFileError: A file or folder has no usable document.

    Example:
        >>> import decoder2vec as d2v
        >>> jobs = [{"id": "baker", "title": "Baker", "text": "Bake bread at night."}]
        >>> resumes = ["I repair pumps.", "I bake bread and rolls."]
        >>> matching = d2v.match(jobs, resumes, "tiny-llama", weight=0.2)
        >>> [resumes[best.right] for best in matching.for_left[0]]
        ['I bake bread and rolls.', 'I repair pumps.']
        >>> matching.reasons[0, 1].terms.matched
        ('Bake bread',)
    """
    config = MatchConfig(weight, fusion, aggregate, standardise, top, pairs)
    progress = current_progress()
    with progress.phase("reading"):
        sides = to_side(left, "left"), to_side(right, "right")
    n_words = sum(len(full_text(document).split()) for side in sides for document in side.documents)
    progress.expect("loading the model")
    progress.expect("encoding", n_words / _WORDS_OF_PASSAGE)
    progress.expect("explaining", n_words / _WORDS_OF_SENTENCE)
    return match_sides(*sides, resolve_encoder(encoder, **(encoder_options or {})), config, **encode_kwargs)


@dataclass(frozen=True)
class MatchConfig:
    """Options of a match."""

    weight: float = 0.8
    """Weight of the dense scores; BM25 has the remainder."""
    fusion: str = "minmax"
    """How both scores are brought to one scale: minmax, zscore or rrf."""
    aggregate: str = "sections"
    """How the sections of two documents make one dense score: whole, sections or best."""
    standardise: bool = False
    """Give every dimension of a vector the same weight, fitted on the documents of both sides."""
    top: int = 5
    """Matches kept for every document."""
    pairs: int = 3
    """Sentence pairs kept for a match."""

    def __post_init__(self) -> None:
        for kind, name, known in (("fusion", self.fusion, FUSIONS), ("aggregate", self.aggregate, AGGREGATES)):
            if name not in known:
                raise unknown_name(kind, name, known)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense scores is {self.weight}; give a number from 0 to 1.")
        if self.top < 1 or self.pairs < 0:
            raise InputError("Give 1 match or more to keep, and 0 sentence pairs or more.")


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


@dataclass(frozen=True)
class Match:
    """One entry of a ranking."""

    left: int
    """Index of the left document."""
    right: int
    """Index of the right document."""
    score: float
    """Fused score, comparable within one ranking only."""
    dense: float
    """Similarity of the documents."""
    lexical: float
    """BM25 score."""


@dataclass(frozen=True)
class Matching:
    """The result of a match."""

    left: Side
    right: Side
    config: MatchConfig
    for_left: list[list[Match]]
    """For every left document its best right documents, best first."""
    for_right: list[list[Match]]
    """For every right document its best left documents, best first."""
    reasons: dict[tuple[int, int], Reasons]
    """(left, right) -> reasons, for every pair in `for_left`."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, with documents named by their ids."""
        return {
            "left": self.left.name,
            "right": self.right.name,
            "choices": asdict(self.config),
            "skipped": {"left": self.left.skipped, "right": self.right.skipped},
            "for_left": [self._ranking_to_json(ranking, with_reasons=True) for ranking in self.for_left],
            "for_right": [self._ranking_to_json(ranking, with_reasons=False) for ranking in self.for_right],
        }

    def _ranking_to_json(self, ranking: Iterable[Match], *, with_reasons: bool) -> list[dict[str, Any]]:
        return [
            {
                "left": self.left.documents[match.left].id,
                "right": self.right.documents[match.right].id,
                "score": round(match.score, 4),
                "dense": round(match.dense, 4),
                "lexical": round(match.lexical, 3),
                **({"reasons": asdict(self.reasons[match.left, match.right])} if with_reasons else {}),
            }
            for match in ranking
        ]


@dataclass(frozen=True)
class SideScores:
    """Dense and lexical scores of all pairs of documents, each [left, right]."""

    dense: ScoreMatrix
    lexical_from_left: ScoreMatrix
    """BM25 scores with the left texts as queries."""
    lexical_from_right: ScoreMatrix
    """BM25 scores with the right texts as queries."""

    def for_left(self, config: MatchConfig) -> ScoreMatrix:
        """Return [left, right] fused scores, comparable within a row: for ranking the right documents."""
        return fuse(self.dense, self.lexical_from_left, config.weight, config.fusion)

    def for_right(self, config: MatchConfig) -> ScoreMatrix:
        """Return [left, right] fused scores, comparable within a column: for ranking the left documents."""
        return fuse(self.dense.T, self.lexical_from_right.T, config.weight, config.fusion).T


def match_sides(
    left: Side, right: Side, encoder: SupportsEncode, config: MatchConfig | None = None, **encode_kwargs: Any
) -> Matching:
    """Match two sides that are already read; see `match`.

    Args:
        left: The left side.
        right: The right side.
        encoder: Anything with `encode`. Its `similarity` and `explain` are used if it has them.
        config: Options; by default those of `match`.
        encode_kwargs: Passed to `encoder.encode`.
    """
    config = config or MatchConfig()
    similarity = TextSimilarity(encoder, **encode_kwargs)
    with current_progress().phase("encoding"):
        if config.standardise:
            texts = [full_text(document) for side in (left, right) for document in side.documents]
            similarity = similarity.standardised(texts)
        scores = score_sides(left, right, similarity, config.aggregate)
    left_fused, right_fused = scores.for_left(config), scores.for_right(config)

    def entry(i: int, j: int, fused: ScoreMatrix, lexical: ScoreMatrix) -> Match:
        return Match(i, j, float(fused[i, j]), float(scores.dense[i, j]), float(lexical[i, j]))

    for_left = [
        [entry(i, j, left_fused, scores.lexical_from_left) for j in _best_indices(left_fused[i], config.top)]
        for i in range(len(left))
    ]
    for_right = [
        [entry(i, j, right_fused, scores.lexical_from_right) for i in _best_indices(right_fused[:, j], config.top)]
        for j in range(len(right))
    ]
    matched = {(match.left, match.right) for ranking in for_left for match in ranking}
    first = {(ranking[0].left, ranking[0].right) for ranking in for_left}
    explainer = _Explainer(left, right, encoder, similarity, config)
    with current_progress().phase("explaining"):
        reasons = explainer(matched, first)
    return Matching(left, right, config, for_left, for_right, reasons)


def score_sides(left: Side, right: Side, similarity: TextSimilarity, aggregate: str = "sections") -> SideScores:
    """Return the dense and lexical scores of every left document with every right document."""
    for side in (left, right):
        if not side.documents:
            raise InputError(f"The side {side.name!r} holds no document; there is nothing to match.")
    left_sections, right_sections = (SectionedSide.of(side, whole=aggregate == "whole") for side in (left, right))
    sections = section_scores(similarity, left_sections, right_sections)
    dense = document_scores(sections, left_sections, right_sections, aggregate)
    left_texts, right_texts = ([full_text(document) for document in side.documents] for side in (left, right))
    return SideScores(dense, bm25_scores(left_texts, right_texts), bm25_scores(right_texts, left_texts).T)


def fuse(dense: ScoreMatrix, lexical: ScoreMatrix, weight: float, fusion: str = "minmax") -> ScoreMatrix:
    """Return the weighted sum of both scores, each row brought to one scale first.

    Args:
        dense: [queries, candidates] dense scores.
        lexical: [queries, candidates] lexical scores.
        weight: Weight of the dense scores, from 0 to 1; the lexical scores have the remainder.
        fusion: "minmax", "zscore" or "rrf".
    """
    if fusion not in FUSIONS:
        raise unknown_name("fusion", fusion, FUSIONS)
    if not 0 <= weight <= 1:
        raise InputError(f"The weight of the dense scores is {weight}; give a number from 0 to 1.")
    return weight * FUSIONS[fusion](dense) + (1 - weight) * FUSIONS[fusion](lexical)


def _min_max(scores: ScoreMatrix) -> ScoreMatrix:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.where(high > low, (scores - low) / np.where(high > low, high - low, 1.0), 0.0)


def _z_scores(scores: ScoreMatrix) -> ScoreMatrix:
    spread = scores.std(1, keepdims=True)
    return np.where(spread > 0, (scores - scores.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0), 0.0)


def _reciprocal_ranks(scores: ScoreMatrix) -> ScoreMatrix:
    """1 / (60 + rank); equal scores share the best of their ranks."""
    ranks: ScoreMatrix = rankdata(-scores, method="min", axis=1)
    return 1.0 / (_RRF_CONSTANT + ranks)


FUSIONS: dict[str, Callable[[ScoreMatrix], ScoreMatrix]] = {
    "minmax": _min_max,
    "zscore": _z_scores,
    "rrf": _reciprocal_ranks,
}
"""How the scores of each row are brought to one scale."""


def _best_indices(scores: ScoreMatrix, count: int) -> list[int]:
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]


class _Explainer:
    """Finds the reasons of pairs of documents; sections, terms and sentences are computed once for all pairs."""

    def __init__(
        self, left: Side, right: Side, encoder: SupportsEncode, similarity: TextSimilarity, config: MatchConfig
    ) -> None:
        self._left, self._right = SectionedSide.of(left), SectionedSide.of(right)
        self._texts = [[full_text(document) for document in side.documents] for side in (left, right)]
        self._similarity, self._config = similarity, config
        self._explain = getattr(encoder, "explain", None)
        self._rarity = TermRarity([*self._texts[0], *self._texts[1]])

    def __call__(self, pairs: set[tuple[int, int]], first: set[tuple[int, int]]) -> dict[tuple[int, int], Reasons]:
        """Return the reasons of all pairs; those of layers only for the `first` pairs, since both texts are encoded."""
        scores = section_scores(self._similarity, self._left, self._right)
        left_sentences, right_sentences = (
            {index: split_sentences(self._texts[side][index]) for index in {pair[side] for pair in pairs}}
            for side in (0, 1)
        )
        if self._config.pairs:
            documents = [*left_sentences.values(), *right_sentences.values()]
            self._similarity.encode([sentence for sentences in documents for sentence in sentences])
        return {
            (i, j): Reasons(
                self._section_scores(scores, i, j),
                self._rarity.compare(self._texts[0][i], self._texts[1][j]),
                best_sentence_pairs(left_sentences[i], right_sentences[j], self._similarity, self._config.pairs),
                self._layer_contributions(i, j) if (i, j) in first else [],
            )
            for i, j in sorted(pairs)
        }

    def _section_scores(self, scores: ScoreMatrix, i: int, j: int) -> list[SectionScore]:
        row, column = int(self._left.document_starts[i]), int(self._right.document_starts[j])
        left, right = self._left.sections[i], self._right.sections[j]
        block = scores[row : row + len(left), column : column + len(right)]
        return [
            SectionScore(section.display_name, right[best].display_name, float(section_row[best]))
            for section, best, section_row in zip(left, block.argmax(1), block, strict=True)
        ]

    def _layer_contributions(self, i: int, j: int) -> list[tuple[str, float]]:
        if self._explain is None:
            return []
        try:
            explanation = self._explain(self._texts[0][i], self._texts[1][j])
        except UnsupportedError:
            self._explain = None  # it cannot explain other pairs either
            return []
        return [
            (str(reading), contribution)
            for reading, contribution in zip(explanation.readings, explanation.contributions, strict=True)
        ]
