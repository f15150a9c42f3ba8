"""Match two sides: rank each side for every document of the other, by meaning and by words, and give the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.matching.calibration import (
    REFERENCE_PAIRS,
    background_weights,
    calibrated_scores,
    reference_sides,
    trust_in,
    unrelated_level,
    unrelated_pairs,
)
from decoder2vec.matching.reasons import Explainer, Reasons
from decoder2vec.matching.section_scores import (
    AGGREGATES,
    SectionedSide,
    SupportsEncode,
    TextSimilarity,
    document_scores,
    full_text,
    section_scores,
)
from decoder2vec.matching.sides import Side, SideSource, to_side
from decoder2vec.matching.terms import ScoreMatrix, TermWeights, shared_terms
from decoder2vec.maths.probability import Probability
from decoder2vec.progress import current_progress
from decoder2vec.search.store import resolve_encoder

CALIBRATED = "calibrated"
"""The fusion whose scores can be compared between lists."""
_MIN_SENTENCE_SCORE = 0.2
"""Of the way from unrelated texts to the same text: sentences that are less similar are no reason for a match."""
_RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""
_WORDS_FOR_PASSAGE, _WORDS_FOR_SENTENCE = 60, 50
"""Words of documents for each passage and for each sentence that is encoded, from which the work is estimated."""


def match(
    left: SideSource,
    right: SideSource,
    encoder: SupportsEncode | str | Path = DEFAULT_ENCODER,
    *,
    top: int = 5,
    weight: float = 0.8,
    fusion: str = "calibrated",
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
        weight: Weight of the dense score, from 0 to 1; the share of terms in common has the remainder.
        fusion: How both scores are brought to one scale. With "calibrated" a pair has the same score in every list: 0
            is what unrelated texts have, 0.5 short texts that fit, 1 the same text. "minmax", "zscore" and "rrf" scale
            every list by its own candidates.
        aggregate: What dense scores compare: "sections", "whole" texts, or the "best" two sections alone.
        standardise: Give every dimension of the vectors the same weight, fitted on the documents of both sides (20 or
            more); for encoders that were not trained. Scores then depend on all documents.
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
    progress.expect("encoding", n_words / _WORDS_FOR_PASSAGE)
    progress.expect("explaining", n_words / _WORDS_FOR_SENTENCE)
    return match_sides(*sides, resolve_encoder(encoder, **(encoder_options or {})), config, **encode_kwargs)


@dataclass(frozen=True)
class MatchConfig:
    """Options of a match."""

    weight: float = 0.8
    """Weight of the dense scores; the shares of terms in common have the remainder."""
    fusion: str = "calibrated"
    """How both scores are brought to one scale: calibrated, or within each list minmax, zscore or rrf."""
    aggregate: str = "sections"
    """How the sections of two documents make one dense score: whole, sections or best."""
    standardise: bool = False
    """Give every dimension of a vector the same weight, fitted on the documents of both sides."""
    top: int = 5
    """Matches kept for every document."""
    pairs: int = 3
    """Sentence pairs kept for a match."""

    def __post_init__(self) -> None:
        fusions = (CALIBRATED, *FUSIONS)
        for kind, name, known in (("fusion", self.fusion, fusions), ("aggregate", self.aggregate, AGGREGATES)):
            if name not in known:
                raise unknown_name(kind, name, known)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense scores is {self.weight}; give a number from 0 to 1.")
        if self.top < 1 or self.pairs < 0:
            raise InputError("Give 1 match or more to keep, and 0 sentence pairs or more.")


@dataclass(frozen=True)
class Match:
    """One entry of a ranking."""

    left: int
    """Index of the left document."""
    right: int
    """Index of the right document."""
    score: float
    """Calibrated score from 0 to 1; with another fusion it is comparable within one ranking only."""
    dense: float
    """Similarity of the documents."""
    lexical: float
    """Share of terms in common, from 0 to 1; rare terms count more."""
    share_below: float | None = None
    """Share of other pairs with a lower score: all pairs of this matching, and pairs that are known to be unrelated;
    None with another fusion than "calibrated", since its scores do not compare between lists."""
    probability: Probability | None = None
    """Probability that the two fit each other, if the encoder is calibrated, and options of scores are the default."""


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
    scores: ScoreMatrix = field(compare=False)
    """[left, right] scores of all pairs, as in `for_left`."""

    @property
    def score_meaning(self) -> str:
        """What the scores mean, in words."""
        if self.config.fusion != CALIBRATED:
            return "Scores order the candidates of one document; they cannot be compared between documents."
        compared = (
            "Vectors are standardised on these documents, so scores of other lists differ"
            if self.config.standardise
            else "The other documents do not change a score, so scores can be compared between lists"
        )
        probability = (
            " The probability, with its 95 % interval, is that of a positive pair in the data of `d2v calibrate`."
            if any(match.probability for ranking in self.for_left for match in ranking)
            else ""
        )
        return (
            "A score of 0 is what unrelated texts have, 0.5 short texts that fit each other (long documents rarely "
            f"reach it), 1 the same text twice. {compared}. “Above” is the share of all pairs of documents that score "
            f"lower.{probability}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, with documents named by their ids."""
        return {
            "left": self.left.name,
            "right": self.right.name,
            "score_meaning": self.score_meaning,
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
                "above": None if match.share_below is None else round(match.share_below, 4),
                **({"probability": match.probability._asdict()} if match.probability else {}),
                "dense": round(match.dense, 4),
                "lexical": round(match.lexical, 4),
                **({"reasons": asdict(self.reasons[match.left, match.right])} if with_reasons else {}),
            }
            for match in ranking
        ]


class FusedScores(NamedTuple):
    """One score for each pair of documents."""

    for_left: ScoreMatrix
    """[left, right] scores for ranking the right documents of each left one."""
    for_right: ScoreMatrix
    """[left, right] scores for ranking the left documents of each right one."""
    shares_below: ScoreMatrix | None = None
    """[left, right] shares of other pairs with a lower score; of calibrated scores only."""


@dataclass(frozen=True)
class SideScores:
    """Dense and lexical scores of all pairs of documents, and of all documents with those of the reference."""

    left: SectionedSide
    right: SectionedSide
    passages: ScoreMatrix
    """[left passages, right passages] similarities."""
    dense_with_reference: ScoreMatrix
    """[left + reference, right + reference] similarities."""
    lexical_with_reference: ScoreMatrix
    """[left + reference, right + reference] shares of terms in common."""
    self_similarity: float
    """Dense similarity of a text with itself."""

    @property
    def dense(self) -> ScoreMatrix:
        """[left, right] similarities."""
        return _without_reference(self.dense_with_reference)

    @property
    def lexical(self) -> ScoreMatrix:
        """[left, right] shares of terms in common."""
        return _without_reference(self.lexical_with_reference)

    def fused(self, config: MatchConfig) -> FusedScores:
        """Return one score for each pair, by the fusion and the weight of the options."""
        if config.fusion != CALIBRATED:
            for_right = fuse(self.dense.T, self.lexical.T, config.weight, config.fusion).T
            return FusedScores(fuse(self.dense, self.lexical, config.weight, config.fusion), for_right)
        scores = calibrated_scores(
            self.dense_with_reference, self.lexical_with_reference, self.self_similarity, config.weight
        )
        pairs = _without_reference(scores)
        others = np.sort(np.concatenate([pairs.ravel(), scores[unrelated_pairs(scores.shape)]]))
        return FusedScores(pairs, pairs, np.searchsorted(others, pairs) / (len(others) - 1))

    def similarity_at(self, share: float) -> float:
        """Return the similarity at this share of the way from unrelated texts to the same text."""
        unrelated = unrelated_level(self.dense_with_reference)
        return unrelated + share * (self.self_similarity - unrelated)


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
            passages = [passage for side in (left, right) for passage in SectionedSide.of(side).passages]
            similarity = similarity.standardised(passages)
        scores = score_sides(left, right, similarity, config.aggregate)
    fused = scores.fused(config)
    default_scores = replace(config, top=MatchConfig.top, pairs=MatchConfig.pairs) == MatchConfig()
    curve = getattr(encoder, "probabilities", {}).get("match") if default_scores else None

    def entry(i: int, j: int, ranked_by: ScoreMatrix) -> Match:
        score = float(ranked_by[i, j])
        score = max(0.0, score) if config.fusion == CALIBRATED else score
        share_below = None if fused.shares_below is None else float(fused.shares_below[i, j])
        probability = curve(float(ranked_by[i, j])) if curve else None
        return Match(i, j, score, float(scores.dense[i, j]), float(scores.lexical[i, j]), share_below, probability)

    for_left = [
        [entry(i, j, fused.for_left) for j in _best_indices(fused.for_left[i], config.top)] for i in range(len(left))
    ]
    for_right = [
        [entry(i, j, fused.for_right) for i in _best_indices(fused.for_right[:, j], config.top)]
        for j in range(len(right))
    ]
    matched = {(match.left, match.right) for ranking in for_left for match in ranking}
    first = {(ranking[0].left, ranking[0].right) for ranking in for_left}
    with current_progress().phase("explaining"):
        if config.aggregate == "whole":  # reasons are always about sections
            scores = score_sides(left, right, similarity)
        explainer = Explainer(
            sides=(left, right),
            sections=(scores.left, scores.right),
            passages=scores.passages,
            similarity=similarity,
            encoder=encoder,
            max_pairs=config.pairs,
            min_similarity=scores.similarity_at(_MIN_SENTENCE_SCORE),
        )
        reasons = explainer(matched, first)
    return Matching(left, right, config, for_left, for_right, reasons, fused.for_left)


def score_sides(left: Side, right: Side, similarity: TextSimilarity, aggregate: str = "sections") -> SideScores:
    """Return the dense and lexical scores of every left document with every right document and with the reference."""
    for side in (left, right):
        if not side.documents:
            raise InputError(f"The side {side.name!r} holds no document; there is nothing to match.")
    extended = (
        Side(side.name, [*side.documents, *reference.documents])
        for side, reference in zip((left, right), reference_sides(), strict=True)
    )
    a, b = (SectionedSide.of(side, whole=aggregate == "whole") for side in extended)
    passages = similarity(a.passages, b.passages)
    weights = TermWeights([*a.stems, *b.stems], background_weights(), trust_in(len(left), len(right)))
    dense = document_scores(section_scores(passages, a, b), a, b, aggregate, weights)
    lexical = shared_terms(a.stems, b.stems, weights)
    reference_passages = a.passages[-len(REFERENCE_PAIRS) :]
    self_similarity = float(np.median(similarity(reference_passages, reference_passages).diagonal()))
    return SideScores(a, b, passages, dense, lexical, self_similarity)


def _without_reference(scores: ScoreMatrix) -> ScoreMatrix:
    return scores[: -len(REFERENCE_PAIRS), : -len(REFERENCE_PAIRS)]


def fuse(dense: ScoreMatrix, lexical: ScoreMatrix, weight: float, fusion: str = "minmax") -> ScoreMatrix:
    """Return the weighted sum of both scores, each row brought to one scale first by its own candidates.

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
