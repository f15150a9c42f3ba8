"""Similarities between embeddings, named as in sentence-transformers.

Cosines are computed in float64 and rounded: close scores do not tie, and equal vectors have a cosine of exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from decoder2vec.errors import InputError, unknown_name

_Scores = Callable[[Tensor, Tensor], Tensor]

_ALL_PAIRS: dict[str, _Scores] = {
    "cosine": lambda a, b: (_unit(a) @ _unit(b).T).float(),
    "dot": lambda a, b: a @ b.T,
    # the matmul form of cdist loses all digits where vectors share one huge dimension, as decoder states do
    "euclidean": lambda a, b: -torch.cdist(a, b, p=2.0, compute_mode="donot_use_mm_for_euclid_dist"),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}
_ROW_BY_ROW: dict[str, _Scores] = {
    "cosine": lambda a, b: (_unit(a) * _unit(b)).sum(dim=-1).float(),
    "dot": lambda a, b: (a * b).sum(dim=-1),
    "euclidean": lambda a, b: -(a - b).pow(2).sum(dim=-1).sqrt(),
    "manhattan": lambda a, b: -(a - b).abs().sum(dim=-1),
}

SIMILARITIES = tuple(_ALL_PAIRS)


def _unit(rows: Tensor) -> Tensor:
    """Rows of unit length in float64, which Apple's GPUs do not have."""
    return normalize((rows.cpu() if rows.device.type == "mps" else rows).double(), dim=-1)


def similarity_matrix(name: str, a: Any, b: Any) -> Tensor:
    """[n, m] similarities of every row of `a` with every row of `b`; distances are negated."""
    return _ALL_PAIRS[name](as_float_rows(a), as_float_rows(b))


def pairwise_similarity(name: str, a: Any, b: Any) -> Tensor:
    """[n] similarities of each row of `a` with the same row of `b`."""
    return _ROW_BY_ROW[name](as_float_rows(a), as_float_rows(b))


def as_float_rows(vectors: Any) -> Tensor:
    """[n, dim] float32 rows from whatever holds vectors; one vector is one row."""
    if isinstance(vectors, list) and vectors and isinstance(vectors[0], Tensor | np.ndarray):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    if isinstance(vectors, np.ndarray):
        vectors = np.ascontiguousarray(vectors)  # torch takes no reversed arrays
    rows = torch.as_tensor(vectors).float()
    return rows if rows.ndim == 2 else rows.reshape(1, -1)


PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def quantise(vectors: NDArray[np.float32], precision: str) -> NDArray[Any]:
    """Rows of float32 to rows of `precision`.

    int8 and uint8 take each dimension's range from these very rows, so give them many rows at once;
    binary packs the signs of eight dimensions into one byte.
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        packed: NDArray[Any] = np.packbits(vectors > 0, axis=-1)
        return (packed - 128).astype(np.int8) if precision == "binary" else packed
    if len(vectors) == 1:
        raise InputError(f"One vector alone has no range for {precision}; encode many texts at once.")
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    steps = np.where(high > low, (high - low) / 255, 1.0)
    scaled = np.clip(np.floor((vectors - low) / steps), 0, 255)
    return np.asarray(scaled, np.uint8) if precision == "uint8" else np.asarray(scaled - 128, np.int8)
