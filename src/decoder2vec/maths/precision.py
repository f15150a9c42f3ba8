"""Embeddings in fewer bits, in sentence-transformers' formats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError, unknown_name

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
