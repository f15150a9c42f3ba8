"""Similarities between embeddings, named as in sentence-transformers.

Cosines are computed in float64 and rounded: close scores do not tie, and equal vectors have a cosine of exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

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


def all_pairs(name: str, a: Any, b: Any) -> Tensor:
    """[n, m] similarities of every row of `a` with every row of `b`; distances are negated."""
    return _ALL_PAIRS[name](rows_of(a), rows_of(b))


def row_by_row(name: str, a: Any, b: Any) -> Tensor:
    """[n] similarities of each row of `a` with the same row of `b`."""
    return _ROW_BY_ROW[name](rows_of(a), rows_of(b))


def rows_of(vectors: Any) -> Tensor:
    """[n, dim] float32 rows from whatever holds vectors; one vector is one row."""
    if isinstance(vectors, list) and vectors and isinstance(vectors[0], Tensor | np.ndarray):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    if isinstance(vectors, np.ndarray):
        vectors = np.ascontiguousarray(vectors)  # torch takes no reversed arrays
    rows = torch.as_tensor(vectors).float()
    return rows if rows.ndim == 2 else rows.reshape(1, -1)
