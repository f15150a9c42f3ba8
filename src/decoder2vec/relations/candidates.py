"""Candidates: for each mention the k nearest others of its document; only these pairs are classified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.relations.mentions import MentionSet, Pair

Floats = NDArray[np.float32]
Indices = NDArray[np.intp]

_ROWS_AT_ONCE = 1024
"""Heads whose similarities with all tails of a document are in memory at a time."""


@dataclass(frozen=True)
class Candidates:
    """The pairs that were retrieved; a pair that is not among them has no relation."""

    pairs: Indices
    """[n, 2] head and tail of each pair, sorted."""
    similarity: Floats
    """[n] what the retriever gave each pair."""
    rank: Indices
    """[n] rank of the tail among the neighbours of its head, from 1; where direction does not matter, the better of
    both."""

    def __len__(self) -> int:
        return len(self.pairs)

    def tuples(self) -> list[Pair]:
        """The pairs as tuples."""
        return [(int(head), int(tail)) for head, tail in self.pairs]

    def select(self, rows: NDArray[np.bool_]) -> Candidates:
        """The candidates of these rows."""
        return Candidates(self.pairs[rows], self.similarity[rows], self.rank[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Candidates]) -> Candidates:
        """All candidates of several."""
        fields = ([getattr(part, name) for part in parts] for name in ("pairs", "similarity", "rank"))
        return cls(*map(np.concatenate, fields))

    def recall(self, gold: Mapping[Pair, str] | Iterable[Pair]) -> float:
        """Share of related pairs that were retrieved; 1 if there are none."""
        related = set(gold)
        return len(related.intersection(self.tuples())) / len(related) if related else 1.0


def retrieve(heads: Floats, tails: Floats, mentions: MentionSet, k: int) -> Candidates:
    """Return for each head the k tails of its document with the highest cosine; equal ones in the order of mentions.

    Args:
        heads: [mentions, dim] vectors of the mentions as heads, of length 1.
        tails: [mentions, dim] vectors of the mentions as tails, of length 1.
        mentions: The mentions.
        k: Tails for each head; a document with fewer gives all of them.
    """
    if k < 1:
        raise InputError(f"k is {k}; give 1 candidate or more for each mention.")
    best: dict[Pair, tuple[int, float]] = {}
    for head_indices, tail_indices in mentions.by_document():
        tail_array = np.array(tail_indices, np.intp)
        for begin in range(0, len(head_indices), _ROWS_AT_ONCE):
            rows = np.array(head_indices[begin : begin + _ROWS_AT_ONCE], np.intp)
            scores = heads[rows] @ tails[tail_array].T
            scores[rows[:, None] == tail_array] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            for row, (head, ranking) in enumerate(zip(rows.tolist(), order.tolist(), strict=True)):
                for rank, column in enumerate(ranking, 1):
                    tail = tail_indices[column]
                    if tail != head:
                        pair = mentions.pair(head, tail)
                        known = best.get(pair)
                        if known is None or rank < known[0]:
                            best[pair] = (rank, float(scores[row, column]))
    pairs = sorted(best)
    ranks, similarities = zip(*(best[pair] for pair in pairs), strict=True) if pairs else ((), ())
    return Candidates(
        np.array(pairs, np.intp).reshape(-1, 2), np.array(similarities, np.float32), np.array(ranks, np.intp)
    )
