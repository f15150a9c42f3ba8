"""The scale of match scores: 0 is what unrelated texts have, 0.5 short texts that fit, 1 the same text twice.

An encoder's similarities have a level of their own: unrelated texts have 0.15 with one and 0.9 with another. It is
measured with six jobs and six resumes of the labelled set that comes with the package. They are unrelated to nearly all
that a user matches, and each of the jobs fits one of the resumes. How much a term says comes from that set, too.

Where both sides have many documents, these say more than the reference: a phrase that all of them have is boilerplate,
and so is what makes a document similar to all others. They are therefore trusted the more the more there are. For a few
jobs or a few resumes, a score hardly depends on the other documents; a single pair has a score, too.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder2vec.matching.evaluation import built_in_folder, read_labelled_set
from decoder2vec.matching.section_scores import full_text
from decoder2vec.matching.sides import Side, read_side
from decoder2vec.matching.terms import ScoreMatrix, TermWeights, TextTerms

REFERENCE_PAIRS = (
    ("job-063", "resume-160"),
    ("job-028", "resume-057"),
    ("job-075", "resume-020"),
    ("job-069", "resume-159"),
    ("job-016", "resume-051"),
    ("job-054", "resume-143"),
)
"""Jobs and resumes that fit, of six families of occupations of the train split; half of them share almost no words."""
TRUSTED_AT = 2
"""Further documents on the smaller side at which the user's documents are trusted as much as the reference."""
TYPICAL_FIT = 0.5
"""Score of a pair that is as similar as the reference pairs."""


@cache
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


@cache
def background_weights() -> TermWeights:
    """Return how much each term says, by the jobs and resumes of the train families of the labelled set."""
    labelled = read_labelled_set()
    sides = ((labelled.jobs, labelled.job_splits), (labelled.resumes, labelled.resume_splits))
    documents = [pair for side, splits in sides for pair in zip(side.documents, splits, strict=True)]
    return TermWeights(TextTerms(full_text(document)).stems for document, split in documents if split == "train")


def trust_in(n_left: int, n_right: int) -> float:
    """Return how far the documents of two sides are trusted to show what is usual, from 0 to 1."""
    smaller = min(n_left, n_right)
    return (smaller - 1) / (smaller - 1 + TRUSTED_AT)


def unrelated_pairs(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which pairs of a [left + 6, right + 6] matrix are unrelated: those with a reference document, but fits."""
    size = len(REFERENCE_PAIRS)
    unrelated = np.ones(shape, bool)
    unrelated[:-size, :-size] = False  # what the user's pairs are is to be found out
    unrelated[-size:, -size:] = ~np.eye(size, dtype=bool)
    return unrelated


def calibrated_scores(dense: ScoreMatrix, lexical: ScoreMatrix, self_similarity: float, weight: float) -> ScoreMatrix:
    """Return calibrated scores, at most 1; below 0 for what is less similar than unrelated texts are.

    Args:
        dense: [left + 6, right + 6] similarities; the last rows and columns are those of the reference.
        lexical: Shares of terms in common, of the same shape.
        self_similarity: Similarity of a text with itself.
        weight: Weight of the dense part; the share of terms in common has the remainder.
    """
    unrelated = unrelated_similarities(dense, self_similarity)
    dense_parts = (dense - unrelated) / np.maximum(self_similarity - unrelated, 1e-9)
    parts = weight * dense_parts + (1 - weight) * lexical
    size = len(REFERENCE_PAIRS)
    fit = min(max(float(np.median(parts[-size:, -size:].diagonal())), 0.01), 0.99)
    scores = np.interp(parts, [0.0, fit, 1.0], [0.0, TYPICAL_FIT, 1.0])
    return np.where(parts < 0, parts * TYPICAL_FIT / fit, scores)


def unrelated_similarities(dense: ScoreMatrix, self_similarity: float) -> ScoreMatrix:
    """Return the similarity that each pair would have if it were unrelated.

    It is that of unrelated reference documents, and more for a document that is similar to all others, such as a long
    one with much boilerplate, or less for one that is similar to none; but at least that of the lower of both documents
    with the others, and at most halfway to the same text.

    Args:
        dense: [left + 6, right + 6] similarities; the last rows and columns are those of the reference.
        self_similarity: Similarity of a text with itself.
    """
    size = len(REFERENCE_PAIRS)
    level = unrelated_level(dense)
    unrelated = np.where(unrelated_pairs(dense.shape), dense, np.nan)
    of_left, of_right = np.nanmean(unrelated[:, -size:], 1), np.nanmean(unrelated[-size:], 0)
    mean = of_left[-size:].mean()  # equal to that of the right reference documents
    trust = trust_in(len(dense) - size, dense.shape[1] - size)
    left_offsets = (trust * _offsets(dense.mean(1)) + (1 - trust) * (of_left - mean))[:, None]
    right_offsets = (trust * _offsets(dense.mean(0)) + (1 - trust) * (of_right - mean))[None]
    lowest = level + np.minimum(left_offsets, right_offsets)
    return np.asarray(np.clip(level + left_offsets + right_offsets, lowest, (level + self_similarity) / 2))


def _offsets(means: ScoreMatrix) -> ScoreMatrix:
    """Differences from the mean of the user's documents, and of the reference documents among themselves."""
    size = len(REFERENCE_PAIRS)
    return np.concatenate([part - part.mean() for part in (means[:-size], means[-size:])])


def unrelated_level(dense: ScoreMatrix) -> float:
    """Return the median similarity of unrelated reference documents; `dense` as in `unrelated_similarities`."""
    reference = dense[-len(REFERENCE_PAIRS) :, -len(REFERENCE_PAIRS) :]
    return float(np.median(reference[unrelated_pairs(reference.shape)]))
