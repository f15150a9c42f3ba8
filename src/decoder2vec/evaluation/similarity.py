"""Similarities of vectors by an encoder's own measure, and the score of an encoder on files of scored pairs (STS)."""

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
"""[n, dim] vectors: a numpy array or a scipy sparse matrix."""

_MATRIX_CELLS = 1 << 24
"""Similarities held in memory at once: 64 MB in float32."""
_DOCUMENT_BATCH = 8192

_STSB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}


class SupportsEncode(Protocol):
    """Anything that turns a list of texts into an array of vectors."""

    @property
    def encode(self) -> Callable[..., Any]:
        """A function of a list of n texts that returns [n, dim] vectors."""


def evaluate_sts(encoder: SupportsEncode, pairs: ScoredPairs, **encode_kwargs: Any) -> dict[str, Any]:
    """Score an encoder on scored pairs.

    Args:
        encoder: Anything with `encode`. If it has `similarity_pairwise`, that is used, else the cosine.
        pairs: Pairs of texts with a gold score each.
        encode_kwargs: Passed on to `encoder.encode`.

    Returns:
        Spearman and Pearson x 100, the 95 % bootstrap interval of Spearman, and the number of pairs and texts.
    """
    pairs.check_scores()
    started = time.perf_counter()
    texts = pairs.texts()
    vectors = np.asarray(encoder.encode(texts, **encode_kwargs))
    if not np.isfinite(vectors).all():
        raise EncoderError(
            f"The encoder returned vectors that are not finite on {pairs.name}; run `d2v doctor` on its model."
        )
    row_of = {text: row for row, text in enumerate(texts)}
    left = vectors[[row_of[text] for text in pairs.left]]
    right = vectors[[row_of[text] for text in pairs.right]]
    scores = score_sts(pairwise_similarities(encoder, left, right), pairs.scores)
    seconds = time.perf_counter() - started
    return {"task": pairs.name, "pairs": len(pairs), "texts": len(texts), **scores, "seconds": round(seconds, 2)}


def score_sts(predicted: Any, gold: Sequence[float]) -> dict[str, Any]:
    """Spearman and Pearson x 100 of predicted similarities and gold scores, and the interval of Spearman."""
    truth = np.asarray(gold, np.float64)
    low, high = spearman_interval(predicted, truth)
    return {
        "spearman": round(100 * spearman(predicted, truth), 2),
        "pearson": round(100 * pearson(predicted, truth), 2),
        "spearman_95": [round(100 * low, 2), round(100 * high, 2)],
    }


def load_pairs(
    source: str | Path, columns: Sequence[str] = PAIR_COLUMNS, *, skip_bad: bool = False, limit: int | None = None
) -> ScoredPairs:
    """Load scored pairs.

    Args:
        source: A .tsv, .csv or .jsonl file, or stsb:train, stsb:dev or stsb:test for STS-B from the Hugging Face Hub.
        columns: Names of the columns of the two texts and the score in a file.
        skip_bad: Skip and count malformed lines of a file instead of raising an error.
        limit: Keep only this many pairs, evenly spaced.
    """
    name, _, split = str(source).partition(":")
    if name == "stsb" and split and not Path(source).exists():
        return load_stsb(split).limit(limit)
    return read_pairs(source, columns, skip_bad=skip_bad, limit=limit)


def load_stsb(split: str) -> ScoredPairs:
    """Download a split of STS-B (train, dev or test) from the Hugging Face Hub."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError("datasets", "hub") from None
    if split not in _STSB_SPLITS:
        raise unknown_name("split", split, _STSB_SPLITS)
    rows = load_dataset("sentence-transformers/stsb", split=_STSB_SPLITS[split])
    return ScoredPairs(f"stsb-{split}", list(rows["sentence1"]), list(rows["sentence2"]), list(rows["score"]))


def pairwise_similarities(encoder: object, left: Matrix, right: Matrix) -> Any:
    """[n] similarities of corresponding rows, by `encoder.similarity_pairwise` if it exists, else cosines."""
    similarity_pairwise = getattr(encoder, "similarity_pairwise", None)
    if similarity_pairwise is not None:
        return to_numpy(similarity_pairwise(left, right)).astype(np.float64)
    if is_sparse(left):
        return np.asarray(_normalize_rows(left).multiply(_normalize_rows(right)).sum(axis=1), np.float64).ravel()
    return pairwise_cos_sim(left, right)


def similarity_matrix(encoder: object, queries: Matrix, documents: Matrix) -> NDArray[np.float32]:
    """[queries, documents] similarities, by `encoder.similarity` if it exists, else cosines.

    They are float32, the precision in which trec_eval compares scores. Documents are compared in batches to limit
    the size of intermediate results.
    """
    similarity = getattr(encoder, "similarity", None)
    matrix = np.empty((queries.shape[0], documents.shape[0]), np.float32)
    left = queries if similarity else _normalize_rows(queries)
    for start in range(0, documents.shape[0], _DOCUMENT_BATCH):
        batch = documents[start : start + _DOCUMENT_BATCH]
        scores = similarity(left, batch) if similarity else left @ _normalize_rows(batch).T
        matrix[:, start : start + _DOCUMENT_BATCH] = scores.toarray() if is_sparse(scores) else to_numpy(scores)
    return matrix


def query_batch_size(documents: int) -> int:
    """How many rows of a similarity matrix over that many documents are computed at once."""
    return max(1, _MATRIX_CELLS // max(1, documents))


def to_numpy(values: Any) -> NDArray[Any]:
    """A numpy array from an array, a list or a tensor on any device."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def is_sparse(matrix: Matrix) -> bool:
    """Whether it is a scipy sparse matrix."""
    return bool(sparse.issparse(matrix))


def _normalize_rows(matrix: Matrix) -> Matrix:
    """Rows scaled to length 1 in float64; a zero row stays zero."""
    if is_sparse(matrix):
        lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1), np.float64)).ravel()
        return matrix.multiply((1 / np.where(lengths > 0, lengths, 1.0))[:, None]).tocsr()
    rows = np.asarray(matrix, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return cast(Matrix, rows / np.where(lengths > 0, lengths, 1.0))
