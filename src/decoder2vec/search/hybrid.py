"""Fusion of a dense and a lexical ranking into one, by rescaled scores or by ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoder2vec.errors import InputError, unknown_name

_RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""

ScoreScaling = Callable[[Sequence[float], float, float], list[float]]
"""Scores (best first), the score of an absent document and that of a full match -> the scores and that of an absent
document on a common scale, the latter last."""


class RankedDocument(NamedTuple):
    """A document in a ranking, with its best chunk and the score of that chunk."""

    id: str
    chunk_key: str
    score: float
    dense: float | None = None
    """Dense part of a fused score; the score is the weighted mean of both parts."""
    lexical: float | None = None
    """Lexical part of a fused score."""


class FullScores(NamedTuple):
    """Scores of a full match with the query; 0 where there is no highest score."""

    dense: float = 0.0
    lexical: float = 0.0


_NO_FULL_SCORES = FullScores()

Candidates = tuple[Sequence[RankedDocument], Sequence[RankedDocument], FullScores]
"""What a fusion takes: the dense and the lexical ranking for a query, and the scores of a full match."""


def _calibrated(scores: Sequence[float], floor: float, full: float) -> list[float]:
    """1 for a full match (or for the best document, if its score is higher), 0 for an absent document."""
    return _min_max([max(full, max(scores)), *scores], floor, full)[1:]


def _reciprocal_ranks(scores: Sequence[float], floor: float, full: float) -> list[float]:
    """1 / (60 + rank): reciprocal rank fusion."""
    return [1 / (_RRF_CONSTANT + rank) for rank in range(1, len(scores) + 1)] + [0.0]


def _unscaled(scores: Sequence[float], floor: float, full: float) -> list[float]:
    return [*scores, floor]


def _min_max(scores: Sequence[float], floor: float, full: float) -> list[float]:
    """The best score becomes 1, that of an absent document 0."""
    span = max(scores) - floor
    return [(score - floor) / span if span > 0 else 1.0 for score in scores] + [0.0]


def _z_scores(scores: Sequence[float], floor: float, full: float) -> list[float]:
    """Mean 0 and variance 1, taken over the ranked documents and one absent document."""
    deviation = statistics.pstdev([*scores, floor])
    mean = statistics.fmean([*scores, floor])
    return [(score - mean) / deviation if deviation > 0 else 0.0 for score in (*scores, floor)]


FUSIONS: dict[str, ScoreScaling] = {
    "calibrated": _calibrated,
    "rrf": _reciprocal_ranks,
    "weighted": _unscaled,
    "minmax": _min_max,
    "zscore": _z_scores,
}
"""Fusion methods: how scores are brought to a common scale before they are added."""


@dataclass(frozen=True)
class Fusion:
    """How hybrid search combines a dense and a lexical ranking."""

    method: str = "calibrated"
    """calibrated, rrf, weighted, minmax or zscore."""
    weight: float = 0.6
    """Weight of the dense ranking, from 0 to 1; the lexical ranking has the remainder."""

    def __post_init__(self) -> None:
        if self.method not in FUSIONS:
            raise unknown_name("fusion", self.method, FUSIONS)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense ranking must be between 0 and 1, not {self.weight}.")

    def __call__(
        self, dense: Sequence[RankedDocument], lexical: Sequence[RankedDocument], full: FullScores = _NO_FULL_SCORES
    ) -> list[RankedDocument]:
        """Return one ranking of all documents of both; each keeps its chunk from the ranking where it ranks higher.

        Args:
            dense: Documents by embedding similarity, best first.
            lexical: Documents by BM25, best first.
            full: Scores of a full match, for the method "calibrated".
        """
        # A document that is absent from the lexical ranking shares no words and scores 0; one that is absent from the
        # dense ranking is at most as similar as the last document in it.
        dense_part = self._scaled(dense, dense[-1].score if dense else 0.0, full.dense)
        lexical_part = self._scaled(lexical, 0.0, full.lexical)
        best: dict[str, tuple[int, RankedDocument]] = {}
        for ranking in (dense, lexical):
            for rank, document in enumerate(ranking):
                if document.id not in best or rank < best[document.id][0]:
                    best[document.id] = (rank, document)
        fused = []
        for id, (_, document) in best.items():
            a, b = dense_part(id), lexical_part(id)
            fused.append(document._replace(score=self.weight * a + (1 - self.weight) * b, dense=a, lexical=b))
        return sorted(fused, key=lambda document: -document.score)

    def _scaled(self, ranking: Sequence[RankedDocument], floor: float, full: float) -> Callable[[str], float]:
        """Return a function of a document's id: its scaled score in the ranking."""
        if not ranking:
            return lambda id: 0.0
        *scaled, absent = FUSIONS[self.method]([document.score for document in ranking], floor, full)
        score_of = dict(zip((document.id for document in ranking), scaled, strict=True))
        return lambda id: score_of.get(id, absent)
