"""Two rankings made one: by ranks, or by scores that were brought to one scale."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoder2vec.errors import InputError, unknown_name

_RRF = 60
"""The constant of reciprocal rank fusion, as in the paper (Cormack, Clarke and Büttcher 2009)."""


class Found(NamedTuple):
    """A document, its best chunk and the score of that."""

    document: str
    key: str
    score: float


Scale = Callable[[Sequence[float], float], list[float]]
"""Scores, best first, and what a document has that is not among them -> scores on a common scale, that one last."""


def _by_rank(scores: Sequence[float], floor: float) -> list[float]:
    """1 / (60 + rank): reciprocal rank fusion."""
    return [1 / (_RRF + rank) for rank in range(1, len(scores) + 1)] + [0.0]


def _as_they_are(scores: Sequence[float], floor: float) -> list[float]:
    return [*scores, floor]


def _between_0_and_1(scores: Sequence[float], floor: float) -> list[float]:
    """The best is 1, what was not found is 0."""
    span = max(scores) - floor
    return [(score - floor) / span if span > 0 else 1.0 for score in scores] + [0.0]


def _standardised(scores: Sequence[float], floor: float) -> list[float]:
    """Mean 0 and variance 1, as if what was found and what was not were drawn from one distribution."""
    spread = statistics.pstdev([*scores, floor])
    mean = statistics.fmean([*scores, floor])
    return [(score - mean) / spread if spread > 0 else 0.0 for score in (*scores, floor)]


FUSIONS: dict[str, Scale] = {
    "rrf": _by_rank,
    "weighted": _as_they_are,
    "minmax": _between_0_and_1,
    "zscore": _standardised,
}
"""Ways to bring scores to one scale, by name."""


@dataclass(frozen=True)
class Fusion:
    """How a dense and a lexical ranking become one."""

    method: str = "rrf"
    """rrf, weighted, minmax or zscore."""
    weight: float = 0.5
    """Of the dense ranking; the lexical one has the rest."""

    def __post_init__(self) -> None:
        if self.method not in FUSIONS:
            raise unknown_name("fusion", self.method, FUSIONS)
        if not 0 <= self.weight <= 1:
            raise InputError(f"The weight of the dense ranking is between 0 and 1, not {self.weight}.")

    def __call__(self, dense: Sequence[Found], lexical: Sequence[Found]) -> list[Found]:
        """One ranking of all documents that stand in either; the chunk shown is that of the better rank."""
        totals: dict[str, float] = {}
        chunk: dict[str, tuple[int, str]] = {}
        # words that are not there score 0; a document that is not near is no nearer than the last that was found
        sides = ((dense, self.weight, dense[-1].score if dense else 0.0), (lexical, 1 - self.weight, 0.0))
        documents = dict.fromkeys(found.document for ranking, _, _ in sides for found in ranking)
        for ranking, weight, floor in sides:
            if not ranking:
                continue
            *scaled, rest = FUSIONS[self.method]([found.score for found in ranking], floor)
            known = dict(zip((found.document for found in ranking), scaled, strict=True))
            for document in documents:
                totals[document] = totals.get(document, 0.0) + weight * known.get(document, rest)
            for rank, found in enumerate(ranking):
                if found.document not in chunk or rank < chunk[found.document][0]:
                    chunk[found.document] = (rank, found.key)
        order = sorted(documents, key=lambda document: -totals[document])
        return [Found(document, chunk[document][1], totals[document]) for document in order]
