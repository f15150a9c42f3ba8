"""Hard negatives: texts of the data that an encoder takes for similar and that are no known positives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Rows

_ROWS_PER_PASS = 512
_NEAREST_PER_NEGATIVE = 50
"""Nearest texts that are considered for each negative."""


def mine_hard_negatives(
    encoder: Any,
    examples: ContrastiveExamples,
    *,
    count: int = 3,
    margin: float = 0.95,
    skip: int = 0,
    show_progress_bar: bool = False,
) -> list[list[str]]:
    """Find negatives for every example.

    Args:
        encoder: Anything with `encode`.
        examples: Negatives are drawn from their positives and negatives.
        count: Maximum number of negatives per example.
        margin: A text is a negative only if its cosine with the anchor is below `margin` times that of the positive;
            more similar texts are likely to be unlabelled positives.
        skip: Leave out this many of the most similar.
        show_progress_bar: While encoding.

    Returns:
        For each example its anchor, its positive and its negatives, most similar first.

    """
    if count < 1 or skip < 0 or not 0 < margin <= 1:
        raise InputError("Give 1 negative or more, skip 0 or more, and a margin above 0 and up to 1.")
    vectors = np.asarray(encoder.encode(examples.texts, show_progress_bar=show_progress_bar), np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    candidates = np.unique(np.concatenate([examples.positives, examples.negatives[examples.negatives >= 0]]))
    mined = []
    for start in range(0, len(examples), _ROWS_PER_PASS):
        rows = np.arange(start, min(start + _ROWS_PER_PASS, len(examples)))
        mined += _mine_rows(examples, rows, vectors, candidates, count, margin, skip)
    return mined


def _mine_rows(
    examples: ContrastiveExamples,
    rows: Rows,
    vectors: NDArray[np.float32],
    candidates: Rows,
    count: int,
    margin: float,
    skip: int,
) -> list[list[str]]:
    anchors, positives = examples.anchors[rows], examples.positives[rows]
    scores = vectors[anchors] @ vectors[candidates].T
    limits = margin * (vectors[anchors] * vectors[positives]).sum(axis=1)
    scores[scores >= limits[:, None]] = -np.inf
    depth = min(len(candidates), _NEAREST_PER_NEGATIVE * count + skip)
    nearest = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    mined = []
    for row, (anchor, positive) in enumerate(zip(anchors, positives, strict=True)):
        order = nearest[row][np.argsort(-scores[row, nearest[row]], kind="stable")]
        texts = candidates[order[np.isfinite(scores[row, order])]]
        negatives = texts[~examples.are_positives(anchor, texts)][skip : skip + count]
        mined.append([examples.texts[text] for text in (anchor, positive, *negatives)])
    return mined


def to_jsonl(rows: Sequence[Sequence[str]]) -> str:
    """One line per example: anchor, positive and the list of its negatives."""
    lines = ({"anchor": anchor, "positive": positive, "negative": negatives} for anchor, positive, *negatives in rows)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
