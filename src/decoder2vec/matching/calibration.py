"""The scale of match scores: 0 is what unrelated texts have, 0.5 short texts that fit, 1 the same text twice.

An encoder's similarities have a level of their own: unrelated texts have 0.15 with one and 0.9 with another. It is
measured with six jobs and six resumes of the labelled set that comes with the package. They are unrelated to nearly all
that a user matches, and each of the jobs fits one of the resumes. The scale hardly depends on the other candidates, so
that scores can be compared between lists, and a single candidate has a score, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoder2vec.matching.evaluation import built_in_folder
from decoder2vec.matching.sides import Side, read_side
from decoder2vec.matching.terms import ScoreMatrix

REFERENCE_PAIRS = (
    ("job-063", "resume-160"),
    ("job-028", "resume-057"),
    ("job-075", "resume-020"),
    ("job-069", "resume-159"),
    ("job-016", "resume-051"),
    ("job-054", "resume-143"),
)
"""Jobs and resumes that fit, of six families of occupations of the train split; half of them share almost no words."""
TYPICAL_FIT = 0.5
"""Score of a pair that is as similar as the reference pairs."""


def reference_sides() -> tuple[Side, Side]:
    """Return six jobs and six resumes; the first job fits the first resume, and so on."""
    jobs, resumes = (
        {document.id: document for document in read_side(built_in_folder() / name).documents}
        for name in ("jobs.jsonl", "resumes.jsonl")
    )
    return (
        Side("reference jobs", [jobs[job] for job, _ in REFERENCE_PAIRS]),
        Side("reference resumes", [resumes[resume] for _, resume in REFERENCE_PAIRS]),
    )


def unrelated_pairs(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which pairs of a [left + 6, right + 6] matrix are unrelated: those with a reference document, but fits."""
    size = len(REFERENCE_PAIRS)
    unrelated = np.ones(shape, bool)
    unrelated[:-size, :-size] = False  # what the user's own pairs are is to be found out
    unrelated[-size:, -size:] = ~np.eye(size, dtype=bool)
    return unrelated


@dataclass(frozen=True)
class ScoreScale:
    """The scale of one matching, fitted on the similarities with the reference documents."""

    unrelated: float
    """Dense similarity of unrelated texts: 0 on the scale."""
    full: float
    """Dense similarity of a text with itself: 1 on the scale."""
    weight: float
    """Weight of the dense part; the share of terms in common has the remainder."""
    typical_fit: float
    """Weighted sum of both parts for the reference pairs: 0.5 on the scale."""

    @classmethod
    def fit(cls, dense: ScoreMatrix, lexical: ScoreMatrix, full: float, weight: float) -> ScoreScale:
        """Fit on the scores of the documents of both sides with the reference.

        Args:
            dense: [left + 6, right + 6] similarities; the last rows and columns are those of the reference.
            lexical: Shares of terms in common, of the same shape.
            full: Similarity of a text with itself.
            weight: Weight of the dense part.
        """
        size = len(REFERENCE_PAIRS)
        scale = cls(float(np.median(dense[unrelated_pairs(dense.shape)])), full, weight, TYPICAL_FIT)
        fits = scale._sum_of_parts(dense[-size:, -size:].diagonal(), lexical[-size:, -size:].diagonal())
        return replace(scale, typical_fit=min(max(float(np.median(fits)), 0.01), 0.99))

    def __call__(self, dense: ScoreMatrix, lexical: ScoreMatrix) -> ScoreMatrix:
        """Return calibrated scores, at most 1; below 0 for what is less similar than unrelated documents are."""
        parts = self._sum_of_parts(dense, lexical)
        scores = np.interp(parts, [0.0, self.typical_fit, 1.0], [0.0, TYPICAL_FIT, 1.0])
        return np.where(parts < 0, parts * TYPICAL_FIT / self.typical_fit, scores)

    def similarity_at(self, share: float) -> float:
        """Return the dense similarity at this share of the way from unrelated texts to the same text."""
        return self.unrelated + share * (self.full - self.unrelated)

    def _sum_of_parts(self, dense: ScoreMatrix, lexical: ScoreMatrix) -> ScoreMatrix:
        span = max(self.full - self.unrelated, 1e-9)
        return np.asarray(self.weight * (dense - self.unrelated) / span + (1 - self.weight) * lexical)
