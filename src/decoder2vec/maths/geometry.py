"""The shape of a cloud of vectors in a few numbers: how it is spread, and how like it is to another.

What is undefined, such as the spread of vectors that are all equal, is nan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError

Floats = NDArray[np.float64]
Vectors = NDArray[np.floating]

_CHUNK = 512


def unit(vectors: Vectors) -> Floats:
    """Rows of length 1 in float64; a zero vector stays zero."""
    rows = np.asarray(vectors, np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)  # before squaring: neither overflow nor underflow
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Floats = rows / np.where(norms > 0, norms, 1.0)
    return found


def anisotropy(vectors: Vectors) -> float:
    """Mean cosine over all pairs of vectors (Ethayarajh, 2019): 0 if they point everywhere, 1 if all one way.

    The sum over all pairs is the square of the sum, less every vector with itself.
    """
    rows = unit(vectors)
    n = len(rows)
    if n < 2:
        return float("nan")
    total = rows.sum(axis=0)
    return float((total @ total - np.einsum("nd,nd->", rows, rows)) / (n * (n - 1)))


def effective_rank(vectors: Vectors) -> float:
    """Directions in use: exp of the entropy of the singular values of the centred vectors (Roy and Vetterli, 2007)."""
    rows = centred(vectors)
    rows = rows / max(float(np.abs(rows).max(initial=0.0)), 1e-300)
    gram = rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T
    squares = np.linalg.eigvalsh(gram)
    largest = squares[-1] if len(squares) else 0.0
    if largest <= 0:
        return float("nan")
    values = np.sqrt(squares[squares > largest * len(squares) * np.finfo(np.float64).eps])  # the rest is rounding
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def uniformity(vectors: Vectors) -> float:
    """How evenly unit vectors fill the sphere (Wang and Isola, 2020); lower is more even.

    The log of the mean of exp(-2 |u - v|²) over all pairs.
    """
    rows = unit(vectors)
    n, total = len(rows), 0.0
    if n < 2:
        return float("nan")
    for begin in range(0, n, _CHUNK):
        part = rows[begin : begin + _CHUNK]
        squares = (part**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1) - 2 * part @ rows.T
        values = np.exp(-2 * np.maximum(squares, 0.0))
        values[np.arange(len(part)), begin + np.arange(len(part))] = 0.0
        total += float(values.sum())
    return float(np.log(total / (n * (n - 1))))


def alignment(left: Vectors, right: Vectors) -> float:
    """Mean |u - v|² over pairs of unit vectors that belong together (Wang and Isola, 2020): lower is closer."""
    if len(left) != len(right):
        raise InputError(f"Alignment takes pairs, not {len(left)} vectors and {len(right)}.")
    return float(((unit(left) - unit(right)) ** 2).sum(axis=1).mean()) if len(left) else float("nan")


def linear_cka(x: Vectors, y: Vectors) -> float:
    """Centred kernel alignment of two views of the same texts (Kornblith et al., 2019): 1 if equal but for a rotation.

    |Y'X|² / (|X'X| |Y'Y|), in the Frobenius norm.
    """
    return float(cka_matrix([x, y])[0, 1])


def cka_matrix(layers: Sequence[Vectors]) -> Floats:
    """[layer, layer] linear CKA of all with all.

    Taken from the similarities of texts instead of the products of features, some rows at a time: each layer's are
    made once, and then serve all pairs.
    """
    if len({len(layer) for layer in layers}) > 1:
        raise InputError("CKA compares views of the same texts; give as many vectors for each layer.")
    views = [centred(layer) for layer in layers]
    views = [view / max(float(np.linalg.norm(view)), 1e-300) for view in views]
    n = len(views[0]) if views else 0
    products = np.zeros((len(views), len(views)))
    for begin in range(0, n, _CHUNK):
        rows = np.stack([(view[begin : begin + _CHUNK] @ view.T).ravel() for view in views])
        products += rows @ rows.T
    norms = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = products / np.outer(norms, norms)
    return found


def centred(vectors: Vectors) -> Floats:
    """Vectors in float64 less their mean; exactly zero where all are equal."""
    rows = np.asarray(vectors, np.float64)
    if len(rows) and not np.ptp(rows, axis=0).any():
        return np.zeros_like(rows)
    found: Floats = rows - rows.mean(axis=0)
    return found
