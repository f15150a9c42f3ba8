"""Similarities between embeddings, named as in sentence-transformers, and embeddings of lower precision.

Cosines are computed in float64 and rounded: close scores do not tie, and equal vectors have a cosine of exactly 1.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import EncoderError, InputError, unknown_name

if TYPE_CHECKING:  # torch is imported where it is used: a search in NumPy does not wait for it
    from torch import Tensor

_Rows = TypeVar("_Rows", NDArray[np.float32], NDArray[np.float64])
_SimilarityFunction = Callable[["Tensor", "Tensor"], "Tensor"]


def _distances(a: Tensor, b: Tensor, order: float) -> Tensor:
    """[n, m] distances; the matmul form loses all digits where vectors share one huge dimension, as states do."""
    from torch import cdist

    return cdist(a, b, p=order, compute_mode="donot_use_mm_for_euclid_dist")


_MATRIX: dict[str, _SimilarityFunction] = {
    "cosine": lambda a, b: (_normalise(a) @ _normalise(b).T).float(),
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -_distances(a, b, 2.0),
    "manhattan": lambda a, b: -_distances(a, b, 1.0),
}
_PAIRWISE: dict[str, _SimilarityFunction] = {
    "cosine": lambda a, b: (_normalise(a) * _normalise(b)).sum(dim=-1).float(),
    "dot": lambda a, b: (a * b).sum(dim=-1),
    "euclidean": lambda a, b: -(a - b).pow(2).sum(dim=-1).sqrt(),
    "manhattan": lambda a, b: -(a - b).abs().sum(dim=-1),
}

SIMILARITIES = tuple(_MATRIX)
"""Names of the similarities; distances are negated, so that higher is always more similar."""
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
"""Precisions that `quantise` converts to."""


def similarity_matrix(name: str, a: Any, b: Any) -> Tensor:
    """[n, m] similarities of every row of `a` with every row of `b`."""
    return _MATRIX[name](as_float_rows(a), as_float_rows(b))


def pairwise_similarity(name: str, a: Any, b: Any) -> Tensor:
    """[n] similarities of each row of `a` with the same row of `b`."""
    return _PAIRWISE[name](as_float_rows(a), as_float_rows(b))


def as_float_rows(vectors: Any) -> Tensor:
    """Convert arrays, tensors or lists of either to an [n, dim] float32 tensor; a single vector becomes one row."""
    import torch

    if isinstance(vectors, list) and vectors and isinstance(vectors[0], torch.Tensor | np.ndarray):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    if isinstance(vectors, np.ndarray):
        vectors = np.ascontiguousarray(vectors)  # torch does not accept negative strides
    rows = torch.as_tensor(vectors).float()
    return rows if rows.ndim == 2 else rows.reshape(1, -1)


def check_finite(vectors: NDArray[np.float32], texts: Sequence[str]) -> None:
    """Raise EncoderError if a vector holds NaN or infinity; the message names the first such text."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        text = textwrap.shorten(texts[int(np.argmin(finite))], 60, placeholder=" ...")
        raise EncoderError(
            f"The vector of {text!r} is not finite; load the model in float32, or run `d2v doctor` on it."
        )


def normalise(vectors: _Rows, length: bool | str = True) -> _Rows:
    """Scale rows to the length 1 (True) or the root of their dimension ("rms"), or leave them as they are (False)."""
    if not length:
        return vectors
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return cast(_Rows, unit * np.float32(vectors.shape[1] ** 0.5) if length == "rms" else unit)


def quantise(vectors: NDArray[np.float32], precision: str) -> NDArray[Any]:
    """Convert rows of float32 to `precision`, as quantize_embeddings of sentence-transformers does.

    int8 and uint8 take the range of each dimension from these rows, so pass many rows at once; binary and ubinary pack
    the signs of eight dimensions into one byte.
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        packed: NDArray[Any] = np.packbits(vectors > 0, axis=-1)
        return (packed - 128).astype(np.int8) if precision == "binary" else packed
    if len(vectors) == 1:
        raise InputError(f"A single vector has no range for {precision}; encode many texts at once.")
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    steps = np.where(high > low, (high - low) / 255, 1.0)
    scaled = np.clip(np.floor((vectors - low) / steps), 0, 255)
    return np.asarray(scaled, np.uint8) if precision == "uint8" else np.asarray(scaled - 128, np.int8)


def _normalise(rows: Tensor) -> Tensor:
    """Unit rows in float64; on the CPU if they are on an Apple GPU, which has no float64."""
    from torch.nn.functional import normalize

    return normalize((rows.cpu() if rows.device.type == "mps" else rows).double(), dim=-1)
