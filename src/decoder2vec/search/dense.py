"""Exact search among vectors: one matrix product over all of them, in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from decoder2vec.maths.similarity import all_pairs
from decoder2vec.search.store import Vectors

_BYTES_AT_ONCE = 256 * 2**20
"""Scores that are held at the same time."""

KeyScores = list[tuple[str, float]]
"""Keys of chunks and their scores, best first."""


class Dense:
    """Vectors of chunks, ready to be compared with a query's."""

    def __init__(self, keys: Sequence[str], vectors: Vectors, similarity: str) -> None:
        self.keys, self.similarity = list(keys), similarity
        rows = np.array(vectors, np.float32)
        if similarity == "cosine":
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        self._rows = torch.from_numpy(rows)

    def __len__(self) -> int:
        return len(self.keys)

    def search(self, queries: Vectors, count: int, allowed: set[str] | None = None) -> list[KeyScores]:
        """For each query the chunks that are most similar to it; of the allowed ones only, if any are named."""
        rows, keys = self._rows, self.keys
        if allowed is not None:
            kept = [place for place, key in enumerate(keys) if key in allowed]
            rows, keys = rows[kept], [keys[place] for place in kept]
        if not keys:
            return [[] for _ in queries]
        step = max(1, _BYTES_AT_ONCE // (4 * len(keys)))
        found: list[KeyScores] = []
        for begin in range(0, len(queries), step):
            scores = self._scores(torch.from_numpy(np.array(queries[begin : begin + step], np.float32)), rows)
            best, places = scores.topk(min(count, len(keys)), dim=1)
            for values, at in zip(best.tolist(), places.tolist(), strict=True):
                ranked = sorted(zip(values, at, strict=True), key=_best_first)
                found.append([(keys[place], value) for value, place in ranked])
        return found

    def _scores(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[query, chunk] similarities. Products are of float32: fast, and good to six digits."""
        if self.similarity not in ("cosine", "dot"):
            return all_pairs(self.similarity, queries, rows)
        if self.similarity == "cosine":
            queries = torch.nn.functional.normalize(queries, dim=1)
        if len(queries) == 1:
            return torch.mv(rows, queries[0])[None]
        return queries @ rows.T


def _best_first(scored: tuple[float, int]) -> tuple[float, int]:
    """By score, then by place: what differs in the seventh digit only is equal, and keeps one order everywhere."""
    return -round(scored[0], 6), scored[1]
