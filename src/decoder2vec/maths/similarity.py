"""Similarities between embeddings, named as in sentence-transformers; in float32, so that close scores do not tie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

_Scores = Callable[[Tensor, Tensor], Tensor]

_ALL_PAIRS: dict[str, _Scores] = {
    "cosine": lambda a, b: normalize(a, dim=-1) @ normalize(b, dim=-1).T,
    "dot": lambda a, b: a @ b.T,
    # the matmul form of cdist loses all digits where vectors share one huge dimension, as decoder states do
    "euclidean": lambda a, b: -torch.cdist(a, b, p=2.0, compute_mode="donot_use_mm_for_euclid_dist"),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}
_ROW_BY_ROW: dict[str, _Scores] = {
    "cosine": lambda a, b: (normalize(a, dim=-1) * normalize(b, dim=-1)).sum(dim=-1),
    "dot": lambda a, b: (a * b).sum(dim=-1),
    "euclidean": lambda a, b: -(a - b).pow(2).sum(dim=-1).sqrt(),
    "manhattan": lambda a, b: -(a - b).abs().sum(dim=-1),
}

SIMILARITIES = tuple(_ALL_PAIRS)


def all_pairs(name: str, a: Any, b: Any) -> Tensor:
    """[n, m] similarities of every row of `a` with every row of `b`; distances are negated."""
    return _ALL_PAIRS[name](_rows(a), _rows(b))


def row_by_row(name: str, a: Any, b: Any) -> Tensor:
    """[n] similarities of each row of `a` with the same row of `b`."""
    return _ROW_BY_ROW[name](_rows(a), _rows(b))


def _rows(vectors: Any) -> Tensor:
    if isinstance(vectors, list) and vectors and isinstance(vectors[0], Tensor | np.ndarray):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    rows = torch.as_tensor(vectors).float()
    return rows if rows.ndim == 2 else rows.reshape(1, -1)
