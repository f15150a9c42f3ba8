"""The shape of every layer: do its vectors point one way, how many directions do they use, which layers are alike?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.layer_embeddings import LayerEmbeddings
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths.geometry import alignment, anisotropy, cka_matrix, effective_rank, uniformity
from decoder2vec.text.files import read_data_file

_CLOSE = 0.8
"""How far up its scale a pair's score must be for the two to belong together: above 4 of 5 on STS-B, as SimCSE."""
_COMPARED = 2000
"""Texts of which every one is compared with every other, for uniformity and CKA."""

OnProgress = Callable[[str, int], object]


@dataclass(frozen=True)
class RelatedPairs:
    """Pairs of texts that belong together, and how many rows of the file did not say so."""

    name: str
    left: list[str]
    right: list[str]
    left_out: int = 0

    def texts(self) -> list[str]:
        """Every different text."""
        return list(dict.fromkeys([*self.left, *self.right]))


def read_related_pairs(file: Path) -> RelatedPairs:
    """Pairs that belong together: anchors and positives, or the scored pairs in the top fifth of the file's scale.

    A pair of equal texts says nothing about an encoder and is left out.
    """
    data = read_data_file(file)
    rows = data.rows
    if data.kind == "scored pairs":
        scores = [_score(row.label, f"{file}, line {row.line}") for row in rows]
        least = min(scores) + _CLOSE * (max(scores) - min(scores))
        rows = [row for row, score in zip(rows, scores, strict=True) if score > least]
    elif data.kind not in ("pairs", "triplets", "records"):
        raise DataFileError(f"{file} holds {data.kind}; alignment needs pairs: anchor and positive, or scored pairs.")
    pairs = [(row.text, other) for row in rows for other in row.positives]
    kept = [(left, right) for left, right in pairs if left != right]
    if not kept:
        raise DataFileError(f"{file} holds no pair of different texts that belong together.")
    left, right = zip(*kept, strict=True)
    return RelatedPairs(file.name, list(left), list(right), len(data.rows) - len(rows) + len(pairs) - len(kept))


def layer_geometry(
    clouds: LayerEmbeddings, pairs: RelatedPairs | None = None, on_progress: OnProgress = lambda *_: None
) -> dict[str, Any]:
    """Anisotropy, effective rank, uniformity, alignment and CKA of every layer, as a document for JSON."""
    if len(clouds.texts) < 2:
        raise InputError("One text has no shape; give two different texts or more.")
    paired = clouds.of(pairs.texts(), lambda count: on_progress("pairs", count)) if pairs else None
    sides = (paired.rows(pairs.left), paired.rows(pairs.right)) if pairs and paired else None

    def aligned(vectors: NDArray[np.floating]) -> float | None:
        return _number(alignment(vectors[sides[0]], vectors[sides[1]])) if sides else None

    some = _spread(len(clouds.texts))
    found, views = [], []
    for number, reading in enumerate(clouds.readings):
        vectors = clouds.layer(number)
        found.append({"layer": reading.layer, "normed": reading.normed, **_shape(vectors, some)})
        found[-1]["alignment"] = aligned(paired.layer(number)) if paired else None
        views.append(vectors[some] if not found[-1]["flags"] else np.zeros((len(some), 1), np.float32))
        on_progress("layers", 1)
    embedding = _shape(clouds.embeddings(), some)
    embedding["alignment"] = aligned(paired.embeddings()) if paired else None
    return {
        **clouds.describe(),
        "texts": {"count": len(clouds.texts), "compared": len(some), "fingerprint": clouds.fingerprint()},
        "pairs": {"file": pairs.name, "count": len(pairs.left), "left_out": pairs.left_out} if pairs else None,
        "layers": found,
        "embedding": {"dim": clouds.encoder.dim, **embedding},
        "cka": [[_number(value, 4) for value in row] for row in cka_matrix(views)],
    }


def _shape(vectors: NDArray[np.floating], some: NDArray[np.intp]) -> dict[str, Any]:
    names = ("anisotropy", "effective_rank", "uniformity")
    if not np.isfinite(vectors).all():
        return {**dict.fromkeys(names), "flags": ["not finite"]}
    constant = not np.ptp(vectors, axis=0).any()
    values = anisotropy(vectors), effective_rank(vectors), uniformity(vectors[some])
    return {**dict(zip(names, map(_number, values), strict=True)), "flags": ["constant"] if constant else []}


def _spread(count: int) -> NDArray[np.intp]:
    """Numbers of the texts that are compared with each other: all, or some that are evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, _COMPARED)).round().astype(np.intp))


def _score(mark: str, where: str) -> float:
    try:
        score = float(mark)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataFileError(f"{where}: the score {mark!r} is not a finite number.")
    return score


def _number(value: float, digits: int = 6) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
