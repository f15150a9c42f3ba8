"""The scale of match scores: 0 is what unrelated texts have, 0.5 short texts that fit, 1 the same text twice.

An encoder's similarities have a level of their own: unrelated texts have 0.15 with one and 0.9 with another. It is
measured with six jobs and six resumes of the labelled set that comes with the package. They are unrelated to nearly all
that a user matches, and each of the jobs fits one of the resumes. The scale hardly depends on the other candidates, so
that scores can be compared between lists, and a single candidate has a score, too.
"""

from __future__ import annotations

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


def calibrated_scores(dense: ScoreMatrix, lexical: ScoreMatrix, full: float, weight: float) -> ScoreMatrix:
    """Return calibrated scores, at most 1; below 0 for what is less similar than unrelated texts are.

    Args:
        dense: [left + 6, right + 6] similarities; the last rows and columns are those of the reference.
        lexical: Shares of terms in common, of the same shape.
        full: Similarity of a text with itself.
        weight: Weight of the dense part; the share of terms in common has the remainder.
    """
    unrelated = unrelated_similarities(dense, full)
    parts = weight * (dense - unrelated) / np.maximum(full - unrelated, 1e-9) + (1 - weight) * lexical
    size = len(REFERENCE_PAIRS)
    fit = min(max(float(np.median(parts[-size:, -size:].diagonal())), 0.01), 0.99)
    scores = np.interp(parts, [0.0, fit, 1.0], [0.0, TYPICAL_FIT, 1.0])
    return np.where(parts < 0, parts * TYPICAL_FIT / fit, scores)


def unrelated_similarities(dense: ScoreMatrix, full: float) -> ScoreMatrix:
    """Return the similarity that each pair would have if it were unrelated.

    It is that of unrelated texts in general, and more for a document that is similar to everything, such as a long one
    with much boilerplate; but at most halfway to the same text.
    """
    level = float(np.median(dense[unrelated_pairs(dense.shape)]))
    similarities = level + _offsets(dense.mean(1))[:, None] + _offsets(dense.mean(0))[None]
    return np.minimum(similarities, (level + full) / 2)


def _offsets(means: ScoreMatrix) -> ScoreMatrix:
    """Differences from the mean of the user's own documents, and of the reference documents among themselves."""
    size = len(REFERENCE_PAIRS)
    return np.concatenate([part - part.mean() for part in (means[:-size], means[-size:])])
