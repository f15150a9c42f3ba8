"""Fusion of a dense and a lexical ranking into one, by ranks or by rescaled scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoder2vec.errors import InputError, unknown_name

_RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""

ScoreScaling = Callable[[Sequence[float], float], list[float]]
"""Scores (best first) and the score of an absent document -> the same on a common scale, the absent one last."""


class RankedDocument(NamedTuple):
    """A document in a ranking, with its best chunk and the score of that chunk."""

    id: str
    chunk_key: str
    score: float


def _reciprocal_ranks(scores: Sequence[float], floor: float) -> list[float]:
    """1 / (60 + rank): reciprocal rank fusion."""
    return [1 / (_RRF_CONSTANT + rank) for rank in range(1, len(scores) + 1)] + [0.0]


def _unscaled(scores: Sequence[float], floor: float) -> list[float]:
    return [*scores, floor]


def _min_max(scores: Sequence[float], floor: float) -> list[float]:
    """The best score becomes 1, that of an absent document 0."""
    span = max(scores) - floor
    return [(score - floor) / span if span > 0 else 1.0 for score in scores] + [0.0]


def _z_scores(scores: Sequence[float], floor: float) -> list[float]:
    """Mean 0 and variance 1, taken over the ranked documents and one absent document."""
    deviation = statistics.pstdev([*scores, floor])
    mean = statistics.fmean([*scores, floor])
    return [(score - mean) / deviation if deviation > 0 else 0.0 for score in (*scores, floor)]


FUSIONS: dict[str, ScoreScaling] = {
    "rrf": _reciprocal_ranks,
    "weighted": _unscaled,
    "minmax": _min_max,
    "zscore": _z_scores,
}
"""Fusion methods: how scores are brought to a common scale before they are added."""


@dataclass(frozen=True)
class Fusion:
    """How hybrid search combines a dense and a lexical ranking."""

    method: str = "rrf"
    """rrf, weighted, minmax or zscore."""
    weight: float = 0.5
    """Weight of the dense ranking, from 0 to 1; the lexical ranking has the remainder."""

    def __post_init__(self) -> None:
        if self.method not in FUSIONS:
            raise unknown_name("fusion", self.method, FUSIONS)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense ranking must be between 0 and 1, not {self.weight}.")

    def __call__(self, dense: Sequence[RankedDocument], lexical: Sequence[RankedDocument]) -> list[RankedDocument]:
        """Return one ranking of all documents of both; each keeps its chunk from the ranking where it ranks higher."""
        totals: dict[str, float] = {}
        best_chunk: dict[str, tuple[int, str]] = {}
        # A document that is absent from the lexical ranking shares no words and scores 0; one that is absent from the
        # dense ranking is at most as similar as the last document in it.
        weighted_rankings = (
            (dense, self.weight, dense[-1].score if dense else 0.0),
            (lexical, 1 - self.weight, 0.0),
        )
        ids = dict.fromkeys(document.id for ranking, _, _ in weighted_rankings for document in ranking)
        for ranking, weight, floor in weighted_rankings:
            if not ranking:
                continue
            *scaled, absent = FUSIONS[self.method]([document.score for document in ranking], floor)
            score_of = dict(zip((document.id for document in ranking), scaled, strict=True))
            for id in ids:
                totals[id] = totals.get(id, 0.0) + weight * score_of.get(id, absent)
            for rank, document in enumerate(ranking):
                if document.id not in best_chunk or rank < best_chunk[document.id][0]:
                    best_chunk[document.id] = (rank, document.chunk_key)
        order = sorted(ids, key=lambda id: -totals[id])
        return [RankedDocument(id, best_chunk[id][1], totals[id]) for id in order]
