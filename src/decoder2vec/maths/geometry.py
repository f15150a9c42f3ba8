"""Geometry of a set of vectors: anisotropy, uniformity, alignment, effective rank, and CKA between two sets.

A measure that is undefined, such as the effective rank of vectors that are all equal, is nan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError

Floats = NDArray[np.float64]
Vectors = NDArray[np.floating]

_CHUNK = 512
"""Rows compared with all others at a time."""


def anisotropy(vectors: Vectors) -> float:
    """Mean cosine over all pairs of vectors (Ethayarajh, 2019): 0 for random directions, 1 if all directions are equal.

    Computed without the pairs: the squared norm of the sum of all unit vectors, less each vector's product with itself.
    """
    rows = _normalise_rows(vectors)
    n = len(rows)
    if n < 2:
        return float("nan")
    total = rows.sum(axis=0)
    return float((total @ total - np.einsum("nd,nd->", rows, rows)) / (n * (n - 1)))


def effective_rank(vectors: Vectors) -> float:
    """Exp of the entropy of the singular values of the centred vectors (Roy and Vetterli, 2007)."""
    rows = _centre(vectors)
    rows = rows / max(float(np.abs(rows).max(initial=0.0)), 1e-300)
    gram = rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T
    eigenvalues = np.linalg.eigvalsh(gram)
    largest = eigenvalues[-1] if len(eigenvalues) else 0.0
    if largest <= 0:
        return float("nan")
    rounding = largest * len(eigenvalues) * np.finfo(np.float64).eps
    singular_values = np.sqrt(eigenvalues[eigenvalues > rounding])
    shares = singular_values / singular_values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def uniformity(vectors: Vectors) -> float:
    """Uniformity of the directions on the sphere (Wang and Isola, 2020); lower is more uniform.

    The log of the mean of exp(-2 |u - v|²) over all pairs of unit vectors.
    """
    rows = _normalise_rows(vectors)
    n, total = len(rows), 0.0
    if n < 2:
        return float("nan")
    for begin in range(0, n, _CHUNK):
        chunk = rows[begin : begin + _CHUNK]
        squares = (chunk**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1) - 2 * chunk @ rows.T
        values = np.exp(-2 * np.maximum(squares, 0.0))
        values[np.arange(len(chunk)), begin + np.arange(len(chunk))] = 0.0
        total += float(values.sum())
    return float(np.log(total / (n * (n - 1))))


def alignment(left: Vectors, right: Vectors) -> float:
    """Mean |u - v|² over positive pairs of unit vectors (Wang and Isola, 2020); lower is closer."""
    if len(left) != len(right):
        raise InputError(f"Alignment takes pairs, not {len(left)} vectors and {len(right)}.")
    if not len(left):
        return float("nan")
    return float(((_normalise_rows(left) - _normalise_rows(right)) ** 2).sum(axis=1).mean())


def linear_cka(x: Vectors, y: Vectors) -> float:
    """Linear centred kernel alignment of two representations of the same texts (Kornblith et al., 2019).

    |Y'X|² / (|X'X| |Y'Y|) in the Frobenius norm: 1 if they differ only by rotation, scale and offset.
    """
    return float(cka_matrix([x, y])[0, 1])


def cka_matrix(layers: Sequence[Vectors]) -> Floats:
    """[layer, layer] linear CKA of every layer with every other.

    Computed from the Gram matrices of the texts, some rows at a time: each layer's rows are computed once and serve all
    pairs of layers.
    """
    if len({len(layer) for layer in layers}) > 1:
        raise InputError("CKA compares representations of the same texts; give as many vectors for each layer.")
    centred = [_centre(layer) for layer in layers]
    scaled = [layer / max(float(np.linalg.norm(layer)), 1e-300) for layer in centred]
    n = len(scaled[0]) if scaled else 0
    products = np.zeros((len(scaled), len(scaled)))
    for begin in range(0, n, _CHUNK):
        rows = np.stack([(layer[begin : begin + _CHUNK] @ layer.T).ravel() for layer in scaled])
        products += rows @ rows.T
    norms = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore", divide="ignore"):
        cka: Floats = products / np.outer(norms, norms)
    return cka


def _normalise_rows(vectors: Vectors) -> Floats:
    """Unit rows in float64; a zero vector stays zero."""
    rows = np.asarray(vectors, np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)  # before squaring: neither overflow nor underflow
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit_rows: Floats = rows / np.where(norms > 0, norms, 1.0)
    return unit_rows


def _centre(vectors: Vectors) -> Floats:
    """Vectors in float64 minus their mean; exactly zero if all vectors are equal."""
    rows = np.asarray(vectors, np.float64)
    if len(rows) and not np.ptp(rows, axis=0).any():
        return np.zeros_like(rows)
    centred: Floats = rows - rows.mean(axis=0)
    return centred
