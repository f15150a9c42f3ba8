"""Heads that need no labels: an affine map of the pooled states, fitted on vectors of unlabelled texts.

Raw states of a decoder are dominated by a few huge dimensions. Giving every dimension the same weight is worth
2-4 points on sentence similarity.
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
from decoder2vec.maths.similarity import normalise
from decoder2vec.storage import atomic_file

Vectors = NDArray[np.float32]
_Matrix = NDArray[np.float64]
_MeanAndMap = tuple[_Matrix, _Matrix]


@dataclass(frozen=True, eq=False)
class AffineHead:
    """x -> (x - mean) * map, where the map is a scale per dimension or a matrix."""

    kind: str
    mean: Vectors
    map: Vectors
    """[dim] or [dim, output dim]"""

    @classmethod
    def fit(cls, kind: str, vectors: Vectors) -> AffineHead:
        """Fit a head on unlabelled texts.

        Args:
            kind: "standardise", "whiten", "remove_top" or "rotate".
            vectors: [text, dim] vectors of at least two different texts.
        """
        if kind not in AFFINE_HEADS:
            raise unknown_name("head", kind, AFFINE_HEADS)
        if len(vectors) < 2:
            raise InputError(f"A {kind} head needs at least 2 different texts to be fitted on, not {len(vectors)}.")
        data = vectors.astype(np.float64)
        if not np.ptp(data, axis=0).any():
            raise InputError(f"A {kind} head cannot be fitted: all {len(vectors)} texts have the same vector.")
        mean, fitted = AFFINE_HEADS[kind](data)
        # safetensors writes the memory of an array in order, whatever its strides
        return cls(kind, mean.astype(np.float32), np.ascontiguousarray(fitted, np.float32))

    def __call__(self, vectors: Vectors) -> Vectors:
        """Map [n, dim] vectors."""
        centred = vectors - self.mean
        return np.asarray(centred * self.map if self.map.ndim == 1 else centred @ self.map, np.float32)

    @property
    def dim(self) -> int:
        """Dimension of the mapped vectors."""
        return int(self.map.shape[-1])

    def digest(self) -> str:
        """Hash of the fitted values."""
        return hashlib.sha256(self.mean.tobytes() + self.map.tobytes() + self.kind.encode()).hexdigest()[:16]

    def save(self, file: Path) -> None:
        """Write the head as safetensors."""
        with atomic_file(file) as temporary:
            save_file({"mean": self.mean, "map": self.map}, temporary, metadata={"kind": self.kind})

    @classmethod
    def load(cls, file: Path, kind: str) -> AffineHead:
        """Read a head that `save` wrote."""
        tensors = load_file(file)
        return cls(kind, tensors["mean"], tensors["map"])


def _standardise(vectors: _Matrix) -> _MeanAndMap:
    """Scale every dimension to unit variance; one that varies only by rounding is not scaled."""
    deviation: _Matrix = vectors.std(axis=0)
    return vectors.mean(axis=0), 1.0 / np.where(deviation > 1e-9 * deviation.max(), deviation, 1.0)


def _whiten(vectors: _Matrix) -> _MeanAndMap:
    """Make dimensions uncorrelated with unit variance; directions with (almost) no variance are dropped."""
    mean = vectors.mean(axis=0)
    centred = vectors - mean
    variance, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    used = variance > 1e-7 * variance.max()
    return mean, axes[:, used] / np.sqrt(variance[used])


def _remove_top(vectors: _Matrix) -> _MeanAndMap:
    """Project out the strongest directions (one per hundred dimensions), which all texts share."""
    mean = vectors.mean(axis=0)
    centred = vectors - mean
    count = max(1, round(centred.shape[1] / 100))
    _, axes = np.linalg.eigh(centred.T @ centred)
    top = axes[:, -count:]
    return mean, np.eye(centred.shape[1]) - top @ top.T


def _rotate(vectors: _Matrix) -> _MeanAndMap:
    """Turn unit vectors onto their principal axes, the strongest first; all cosines stay as they are."""
    unit = normalise(vectors)
    _, axes = np.linalg.eigh(unit.T @ unit)
    return np.zeros(vectors.shape[1]), axes[:, ::-1]


AFFINE_HEADS: dict[str, Callable[[_Matrix], _MeanAndMap]] = {
    "standardise": _standardise,
    "whiten": _whiten,
    "remove_top": _remove_top,
    "rotate": _rotate,
}
