"""Hard negatives: texts that an encoder, BM25 or an index takes for similar and that are no known positives."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.search.index import Index
from decoder2vec.text.bm25 import BM25
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Rows

_SCORES_PER_PASS = 2**26
"""Similarities held in memory at once: 256 MB."""


def mine_hard_negatives(
    encoder: Any,
    examples: ContrastiveExamples,
    *,
    count: int = 3,
    margin: float = 0.95,
    skip: int = 0,
    show_progress_bar: bool = False,
) -> list[list[str]]:
    """Find negatives for every example.

    Args:
        encoder: Anything with `encode`.
        examples: The negatives of an example are drawn from the positives and negatives of its source.
        count: Maximum number of negatives per example.
        margin: A text is a negative only if its cosine with the anchor is below `margin` times that of the positive;
            more similar texts are likely to be unlabelled positives (NV-Retriever).
        skip: Leave out this many of the most similar.
        show_progress_bar: While encoding.

    Returns:
        For each example its anchor, its positive and its negatives, most similar first.

    """
    check_mining(count, margin, skip)
    progress = current_progress()
    with progress.phase("encoding", len(examples.texts)):
        encoded = np.asarray(encoder.encode(examples.texts, show_progress_bar=show_progress_bar), np.float32)
    vectors = torch.nn.functional.normalize(torch.from_numpy(encoded), dim=1)

    def vectors_of(texts: Rows) -> Tensor:
        return vectors[torch.from_numpy(texts)]

    with progress.phase("mining negatives"):
        negatives = mine_by_vectors(vectors_of, vectors_of, examples, count=count, margin=margin, skip=skip)
    rows = np.column_stack([examples.anchors, examples.positives, negatives])
    return [[examples.texts[text] for text in row if text >= 0] for row in rows.tolist()]


def mine_by_vectors(
    queries_of: Callable[[Rows], Tensor],
    documents_of: Callable[[Rows], Tensor],
    examples: ContrastiveExamples,
    *,
    count: int,
    margin: float = 0.95,
    skip: int = 0,
) -> Rows:
    """Find negatives by vectors that are read as they are needed; see `mine_hard_negatives`.

    Args:
        queries_of: [texts, dim] vectors of length 1 of anchors, given as indices into `examples.texts`, on the device
            to compute on.
        documents_of: The same for positives and negatives.
        examples: The negatives of an example are drawn from the positives and negatives of its source.
        count: Maximum number of negatives per example.
        margin: Maximum similarity of a negative to the anchor, as a share of the positive's.
        skip: Leave out this many of the most similar.

    Returns:
        [examples, count] indices of texts, most similar first; -1 where fewer were found.

    """
    negatives = np.full((len(examples), count), -1, np.intp)
    for source in np.unique(examples.sources):
        of_source = np.flatnonzero(examples.sources == source)
        mentioned = np.concatenate([examples.positives[of_source], examples.negatives[of_source].ravel()])
        candidates = np.unique(mentioned[mentioned >= 0])
        vectors, depth = documents_of(candidates), min(count + skip, len(candidates))
        rows_per_pass = max(1, _SCORES_PER_PASS // len(candidates))
        for start in range(0, len(of_source), rows_per_pass):
            rows = of_source[start : start + rows_per_pass]
            anchors, positives = examples.anchors[rows], examples.positives[rows]
            anchor_vectors = queries_of(anchors)
            with torch.autocast(vectors.device.type, enabled=False):  # a training computes in 16 bits where it can
                scores = anchor_vectors @ vectors.T
            limits = margin * (anchor_vectors * documents_of(positives)).sum(dim=1, keepdim=True)
            scores[scores >= limits] = -torch.inf
            scores[tuple(map(torch.from_numpy, examples.positives_among(anchors, candidates)))] = -torch.inf
            best = scores.topk(depth, dim=1)
            chosen = candidates[best.indices.cpu().numpy()]
            chosen[best.values.isneginf().cpu().numpy()] = -1
            negatives[rows, : max(0, depth - skip)] = chosen[:, skip:]
    return negatives


def check_mining(count: int, margin: float, skip: int) -> None:
    """Raise unless negatives can be mined with these settings."""
    if count < 1 or skip < 0 or not 0 < margin <= 1:
        raise InputError("Give 1 negative or more, skip 0 or more, and a margin above 0 and up to 1.")


def to_jsonl(rows: Sequence[Sequence[str]]) -> str:
    """One line per example: anchor, positive and the list of its negatives."""
    lines = ({"anchor": anchor, "positive": positive, "negative": negatives} for anchor, positive, *negatives in rows)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


# --- negatives from a ranking ---------------------------------------------------------------------------------------

Ranker = Callable[[Sequence[str], int], list[list[str]]]
"""Queries and a depth -> that many documents for each query, best first."""


def draw_negatives(
    rank: Ranker, examples: ContrastiveExamples, *, count: int = 7, top: int = 100, seed: int = 0
) -> list[list[str]]:
    """Draw negatives for every example uniformly from the best documents of a first stage.

    Args:
        rank: Ranks documents for queries: `bm25_ranker`, `encoder_ranker` or `index_ranker`.
        examples: Queries (anchors) with their positives.
        count: Maximum number of negatives per example; fewer where the ranking has no more.
        top: Draw from this many of the best documents.
        seed: The same seed draws the same negatives, whatever other examples there are.

    Returns:
        For each example its anchor, its positive and its negatives, best first. A known positive of the anchor, of this
        or of another example, is never among them, nor a part of one, such as a chunk.

    """
    if count < 1 or top < 1:
        raise InputError("Give 1 negative or more, drawn from the top 1 or more.")
    anchors = list(dict.fromkeys(examples.anchors.tolist()))
    ranked = dict(zip(anchors, rank([examples.texts[anchor] for anchor in anchors], top), strict=True))
    rows = []
    for anchor, positive in zip(examples.anchors.tolist(), examples.positives.tolist(), strict=True):
        related = (examples.groups[[anchor]] @ examples.groups.T).nonzero()[1]
        known = [_squeeze(examples.texts[text]) for text in related if text != anchor]
        query = examples.texts[anchor]
        candidates = [text for text in dict.fromkeys(ranked[anchor][:top]) if text != query]
        allowed = [text for text in candidates if not any(_squeeze(text) in positive for positive in known)]
        rng = np.random.default_rng([seed, zlib.crc32(query.encode()), zlib.crc32(examples.texts[positive].encode())])
        drawn = sorted(rng.permutation(len(allowed))[:count].tolist())
        rows.append([query, examples.texts[positive], *(allowed[index] for index in drawn)])
    return rows


def _squeeze(text: str) -> str:
    """The text with single spaces: an index joins a title and a text by a line break, BEIR's files by a space."""
    return " ".join(text.split())


def bm25_ranker(documents: Sequence[str]) -> Ranker:
    """Rank documents by BM25; those that share no word with a query are left out."""
    index = BM25(documents)
    return lambda queries, top: [[documents[row] for row, _ in index.search(query, top)] for query in queries]


def encoder_ranker(encoder: Any, documents: Sequence[str]) -> Ranker:
    """Rank documents by the cosine of their vectors with the query's."""

    def vectors_of(texts: Sequence[str], role: str) -> Tensor:
        encode = getattr(encoder, f"encode_{role}", encoder.encode)
        with current_progress().phase("encoding", len(texts)):
            vectors = np.asarray(encode(list(texts), show_progress_bar=False), np.float32)
        return torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1)

    def rank(queries: Sequence[str], top: int) -> list[list[str]]:
        by_document = vectors_of(documents, "document")
        step, ranked = max(1, _SCORES_PER_PASS // len(documents)), []
        for part in torch.split(vectors_of(queries, "query"), step):
            best = (part @ by_document.T).topk(min(top, len(documents)), dim=1).indices
            ranked += [[documents[row] for row in rows] for rows in best.tolist()]
        return ranked

    return rank


def index_ranker(index: Index, mode: str = "hybrid") -> Ranker:
    """Rank the documents of an index, each by its best chunk, which stands for it."""

    def rank(queries: Sequence[str], top: int) -> list[list[str]]:
        ranked = index.rank(queries, top, mode)
        chunks = index.store.read_chunks([document.chunk_key for documents in ranked for document in documents])
        return [
            [chunks[document.chunk_key].text for document in documents if document.chunk_key in chunks]
            for documents in ranked
        ]

    return rank
