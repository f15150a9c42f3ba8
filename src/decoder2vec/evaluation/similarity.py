"""How similar does an encoder say that two texts are? By its own measure where it has one, else by the cosine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from decoder2vec.errors import EncoderError, MissingExtraError, unknown_name
from decoder2vec.maths.metrics import pairwise_cos_sim, pearson, spearman, spearman_interval
from decoder2vec.text.files import PAIR_COLUMNS, ScoredPairs, read_pairs

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
    return pairwise_cos_sim(left, right)


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


class SupportsEncode(Protocol):
    """Anything that turns a list of texts into an array of vectors."""

    @property
    def encode(self) -> Callable[..., Any]:
        """A function of a list of texts that gives [n, dim] vectors."""


def evaluate_sts(encoder: SupportsEncode, pairs: ScoredPairs, **encode_kwargs: Any) -> dict[str, Any]:
    """Spearman and Pearson (in points) of the encoder on the pairs, with a 95 % bootstrap interval."""
    started = time.perf_counter()
    texts = pairs.texts()
    vectors = np.asarray(encoder.encode(texts, **encode_kwargs))
    if not np.isfinite(vectors).all():
        raise EncoderError(
            f"The encoder gave vectors that are not finite on {pairs.name}; run `d2v doctor` on its model."
        )
    place = {text: row for row, text in enumerate(texts)}
    left = vectors[[place[text] for text in pairs.left]]
    right = vectors[[place[text] for text in pairs.right]]
    result = score_sts(similarities(encoder, left, right), pairs.scores)
    seconds = time.perf_counter() - started
    return {"task": pairs.name, "pairs": len(pairs), "texts": len(texts), **result, "seconds": round(seconds, 2)}


def score_sts(predicted: Any, scores: Sequence[float]) -> dict[str, Any]:
    """The two correlations and the interval of the first, in points."""
    truth = np.asarray(scores, np.float64)
    low, high = spearman_interval(predicted, truth)
    return {
        "spearman": round(100 * spearman(predicted, truth), 2),
        "pearson": round(100 * pearson(predicted, truth), 2),
        "spearman_95": [round(100 * low, 2), round(100 * high, 2)],
    }


def load_pairs(source: str | Path, columns: Sequence[str] = PAIR_COLUMNS, **options: Any) -> ScoredPairs:
    """Pairs from a file, or STS-B from the data hub by the name stsb:train, stsb:dev or stsb:test."""
    name, _, split = str(source).partition(":")
    if name == "stsb" and split and not Path(source).exists():
        return sts_from_hub(split)
    return read_pairs(source, columns, **options)


def sts_from_hub(split: str) -> ScoredPairs:
    """STS-B from the data hub, for people with a network: split "train", "dev" or "test"."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError("datasets", "hub") from None
    names = {"train": "train", "dev": "validation", "test": "test"}
    if split not in names:
        raise unknown_name("split", split, names)
    rows = load_dataset("sentence-transformers/stsb", split=names[split])
    return ScoredPairs(f"stsb-{split}", list(rows["sentence1"]), list(rows["sentence2"]), list(rows["score"]))
