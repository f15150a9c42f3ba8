"""How similar does an encoder say that two texts are? By its own measure where it has one, else by the cosine."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from decoder2vec.maths.metrics import cosine_pairs

Matrix = Any
"""[n, dim] vectors: a numpy array, or a sparse matrix of scipy."""

_CELLS = 1 << 24
"""So many similarities are held at once: 64 MB."""
_DOCUMENTS = 8192


def similarities(encoder: object, left: Matrix, right: Matrix) -> Any:
    """[n] similarities of each row of `left` with the same row of `right`."""
    own = getattr(encoder, "similarity_pairwise", None)
    if own is not None:
        return as_array(own(left, right)).astype(np.float64)
    if is_sparse(left):
        return np.asarray(_unit(left).multiply(_unit(right)).sum(axis=1), np.float64).ravel()
    return cosine_pairs(left, right)


def similarity_table(encoder: object, queries: Matrix, documents: Matrix) -> NDArray[np.float32]:
    """[n, m] similarities of every query with every document, in the 32 bits in which trec_eval compares them.

    Documents are taken in parts, so that what is made on the way stays small.
    """
    own = getattr(encoder, "similarity", None)
    table = np.empty((queries.shape[0], documents.shape[0]), np.float32)
    left = queries if own else _unit(queries)
    for begin in range(0, documents.shape[0], _DOCUMENTS):
        part = documents[begin : begin + _DOCUMENTS]
        found = own(left, part) if own else left @ _unit(part).T
        table[:, begin : begin + _DOCUMENTS] = found.toarray() if is_sparse(found) else as_array(found)
    return table


def as_array(found: Any) -> NDArray[Any]:
    """An array from an array, a list or a tensor, wherever that lies."""
    return np.asarray(found.cpu() if hasattr(found, "cpu") else found)


def is_sparse(matrix: Matrix) -> bool:
    """Is it one of scipy's sparse matrices?"""
    return bool(sparse.issparse(matrix))


def queries_at_once(documents: int) -> int:
    """How many rows of a table of similarities fit into a modest part of memory."""
    return max(1, _CELLS // max(1, documents))


def _unit(rows: Matrix) -> Matrix:
    """Rows of length 1 in float64; a zero row stays zero."""
    if is_sparse(rows):
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1), np.float64)).ravel()
        return rows.multiply((1 / np.where(lengths > 0, lengths, 1.0))[:, None]).tocsr()
    wide = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return cast(Matrix, wide / np.where(lengths > 0, lengths, 1.0))
