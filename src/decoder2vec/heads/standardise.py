"""What may follow pooling without any training: an affine map fitted on unlabelled vectors.

Raw states of a decoder are dominated by a few huge dimensions. Giving every dimension the same weight is worth
2-4 points on sentence similarity and needs no labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.storage import atomic_file

Vectors = NDArray[np.float32]
_Map = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Head:
    """x -> (x - mean) * map, where the map is a scale per dimension or a matrix."""

    kind: str
    mean: Vectors
    map: Vectors
    """[dim] or [dim, out]"""

    @classmethod
    def fit(cls, kind: str, vectors: Vectors) -> Head:
        """Fit on [n, dim] vectors of unlabelled texts."""
        if kind not in HEADS:
            raise unknown_name("head", kind, HEADS)
        if len(vectors) < 2:
            raise InputError(f"A {kind} head needs at least 2 different texts to be fitted on, not {len(vectors)}.")
        data = vectors.astype(np.float64)
        mean = data.mean(axis=0)
        if not np.ptp(data, axis=0).any():
            raise InputError(f"A {kind} head cannot be fitted: all {len(vectors)} texts have the same vector.")
        # safetensors writes memory as it lies, whatever the strides
        return cls(kind, mean.astype(np.float32), np.ascontiguousarray(HEADS[kind](data - mean), np.float32))

    def __call__(self, vectors: Vectors) -> Vectors:
        """Map [n, dim] vectors."""
        centred = vectors - self.mean
        return np.asarray(centred * self.map if self.map.ndim == 1 else centred @ self.map, np.float32)

    @property
    def dim(self) -> int:
        """Width of what comes out."""
        return int(self.map.shape[-1])

    def digest(self) -> str:
        """Hash of the fitted numbers."""
        return hashlib.sha256(self.mean.tobytes() + self.map.tobytes() + self.kind.encode()).hexdigest()[:16]

    def save(self, file: Path) -> None:
        """Write as safetensors."""
        with atomic_file(file) as temporary:
            save_file({"mean": self.mean, "map": self.map}, temporary, metadata={"kind": self.kind})

    @classmethod
    def load(cls, file: Path, kind: str) -> Head:
        """Read what `save` wrote."""
        tensors = load_file(file)
        return cls(kind, tensors["mean"], tensors["map"])


def _standardise(centred: _Map) -> _Map:
    """Unit variance; a dimension that varies by rounding alone stays as it is."""
    deviation: _Map = centred.std(axis=0)
    return 1.0 / np.where(deviation > 1e-9 * deviation.max(), deviation, 1.0)


def _whiten(centred: _Map) -> _Map:
    """Uncorrelated dimensions of unit variance; directions with (almost) no variance are dropped."""
    variance, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = variance > 1e-7 * variance.max()
    return np.asarray(axes[:, kept] / np.sqrt(variance[kept]))


def _remove_top(centred: _Map) -> _Map:
    """Everything but the strongest directions (one per hundred dimensions), which all texts share."""
    count = max(1, round(centred.shape[1] / 100))
    _, axes = np.linalg.eigh(centred.T @ centred)
    top = axes[:, -count:]
    return np.asarray(np.eye(centred.shape[1]) - top @ top.T)


HEADS: dict[str, Callable[[_Map], _Map]] = {
    "standardise": _standardise,
    "whiten": _whiten,
    "remove_top": _remove_top,
}
