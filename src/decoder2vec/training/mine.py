"""Hard negatives: texts of the same data that an encoder takes for near, and that are not known to belong together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.training.contrast import Contrast

_AT_ONCE = 512
_LOOKED_AT = 50
"""Nearest texts that are looked at for each negative that is wanted."""


def mine(
    encoder: Any,
    contrast: Contrast,
    *,
    count: int = 3,
    margin: float = 0.95,
    skip: int = 0,
    show_progress_bar: bool = False,
) -> list[list[str]]:
    """For each example its anchor, its positive and at most `count` negatives, the nearest first.

    `encoder` is anything with `encode`. A text is taken as a negative only if its cosine with the anchor is below
    `margin` times that of the positive: nearer ones are likely to be positives that nobody has marked. The `skip`
    nearest of those are left out, too.
    """
    if count < 1 or skip < 0 or not 0 < margin <= 1:
        raise InputError("Give 1 negative or more, skip 0 or more, and a margin above 0 and up to 1.")
    vectors = np.asarray(encoder.encode(contrast.texts, show_progress_bar=show_progress_bar), np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    candidates = np.unique(np.concatenate([contrast.positives, contrast.negatives[contrast.negatives >= 0]]))
    found = []
    for begin in range(0, len(contrast), _AT_ONCE):
        rows = np.arange(begin, min(begin + _AT_ONCE, len(contrast)))
        found += _mine_rows(contrast, rows, vectors, candidates, (count, margin, skip))
    return found


def _mine_rows(
    contrast: Contrast,
    rows: NDArray[np.intp],
    vectors: NDArray[np.float32],
    candidates: NDArray[np.intp],
    wanted: tuple[int, float, int],
) -> list[list[str]]:
    count, margin, skip = wanted
    anchors, positives = contrast.anchors[rows], contrast.positives[rows]
    scores = vectors[anchors] @ vectors[candidates].T
    limits = margin * (vectors[anchors] * vectors[positives]).sum(axis=1)
    scores[scores >= limits[:, None]] = -np.inf
    depth = min(len(candidates), _LOOKED_AT * count + skip)
    nearest = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    found = []
    for number, (anchor, positive) in enumerate(zip(anchors, positives, strict=True)):
        order = nearest[number][np.argsort(-scores[number, nearest[number]], kind="stable")]
        texts = candidates[order[np.isfinite(scores[number, order])]]
        free = texts[~contrast.belong_together(anchor, texts)][skip : skip + count]
        found.append([contrast.texts[text] for text in (anchor, positive, *free)])
    return found


def as_jsonl(rows: Sequence[Sequence[str]]) -> str:
    """One line for each example: anchor, positive and the list of its negatives."""
    lines = ({"anchor": anchor, "positive": positive, "negative": negatives} for anchor, positive, *negatives in rows)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
