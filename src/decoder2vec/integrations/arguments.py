"""What the classes of all libraries take: encoders, indexes and rerankers, each by name or folder or as an object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import normalise
from decoder2vec.search.index import Index
from decoder2vec.search.rerank import PairReranker, SupportsRerank, open_reranker
from decoder2vec.search.store import encode_texts, resolve_encoder


def embed(encoder: Any, texts: Sequence[str], role: str, *, normalize: bool) -> list[list[float]]:
    """Return the vectors of texts with the prompt of their role, as lists of floats.

    Args:
        encoder: Anything with `encode`.
        texts: The texts.
        role: "query" or "document".
        normalize: Give the vectors the length 1, which vector stores expect.
    """
    if not texts:
        return []
    vectors: list[list[float]] = normalise(encode_texts(encoder, list(texts), role), normalize).tolist()
    return vectors


def to_index(index: Any) -> Index:
    """Return an index that is given as such or by its location."""
    return index if isinstance(index, Index) else Index.open(index)


def to_reranker(reranker: Any) -> SupportsRerank:
    """Return a reranker that is given as such or by name or folder, or one that scores pairs with an encoder."""
    if callable(getattr(reranker, "rerank", None)):
        return reranker  # type: ignore[no-any-return]
    if isinstance(reranker, str | Path):
        return open_reranker(reranker)
    return PairReranker(resolve_encoder(reranker))


def best_first(
    reranker: SupportsRerank, query: str, texts: Sequence[str], count: int | None
) -> list[tuple[int, float]]:
    """Return (position, score) of the texts that answer a query best.

    Args:
        reranker: Scores the texts.
        query: The query.
        texts: The texts.
        count: Maximum number of texts; None: all.
    """
    if count is not None and count < 1:
        raise InputError(f"Keep 1 text or more, not {count}.")
    scores = [float(score) for score in reranker.rerank(query, list(texts))]
    order = sorted(range(len(scores)), key=lambda position: -scores[position])
    return [(position, scores[position]) for position in order[:count]]
