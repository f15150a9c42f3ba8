"""Exact search among vectors: one matrix product over all of them, in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoder2vec.maths.similarity import similarity_matrix
from decoder2vec.search.hybrid import Found
from decoder2vec.search.store import Filter, Store, Vectors, document_of
from decoder2vec.storage import atomic_folder
from decoder2vec.text.bm25 import SETTINGS, counted, empty_index, words_of

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
            return similarity_matrix(self.similarity, queries, rows)
        if self.similarity == "cosine":
            queries = torch.nn.functional.normalize(queries, dim=1)
        if len(queries) == 1:
            return torch.mv(rows, queries[0])[None]
        return queries @ rows.T


def _best_first(scored: tuple[float, int]) -> tuple[float, int]:
    """By score, then by place: what differs in the seventh digit only is equal, and keeps one order everywhere."""
    return -round(scored[0], 6), scored[1]


_KEYS = "keys.json"


class Lexical:
    """The words of chunks. English stop words count for nothing; words of other languages all count."""

    def __init__(self, keys: Sequence[str], retriever: Any) -> None:
        self.keys, self._retriever = list(keys), retriever

    @classmethod
    def build(cls, keys: Sequence[str], texts: Sequence[str]) -> Lexical:
        """Count the words of all texts."""
        words = counted(texts)
        if not any(words.ids):
            return cls(keys, None)  # bm25s cannot index texts without a word
        made = empty_index()
        made.index(words, show_progress=False)
        return cls(keys, made)

    def save(self, folder: Path, state: str) -> None:
        """Write to a folder, in place of what was there; `state` says of which chunks it is."""
        new = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        with atomic_folder(new) as temporary:
            note = {"state": state, "bm25": SETTINGS, "words": self._retriever is not None, "keys": self.keys}
            (temporary / _KEYS).write_text(json.dumps(note), encoding="utf-8")
            if self._retriever is not None:
                self._retriever.save(temporary, show_progress=False)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)

    @classmethod
    def load(cls, folder: Path, state: str) -> Lexical | None:
        """What `save` wrote, if it is still true."""
        try:
            note = json.loads((folder / _KEYS).read_text(encoding="utf-8"))
            if (note["state"], note["bm25"]) != (state, SETTINGS):
                return None
            kept = empty_index().load(folder, mmap=True, show_progress=False) if note["words"] else None
            return cls(note["keys"], kept)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it can be made again

    def search(self, queries: Sequence[str], count: int, allowed: set[str] | None = None) -> list[KeyScores]:
        """For each query the chunks that share words with it, best first."""
        if self._retriever is None or not self.keys:
            return [[] for _ in queries]
        mask = None if allowed is None else np.array([key in allowed for key in self.keys], np.float32)
        places, scores = self._retriever.retrieve(
            words_of(queries), k=min(count, len(self.keys)), show_progress=False, weight_mask=mask
        )
        return [
            [(self.keys[place], score) for place, score in zip(at, row, strict=True) if score > 0]
            for at, row in zip(places.tolist(), scores.tolist(), strict=True)
        ]


EXACT_BYTES = 512 * 2**20
"""Vectors up to this size are held in memory and compared one by one; more are found by the store's own index."""
_CHUNKS_PER_DOCUMENT = 4
"""More chunks than documents are looked at, since a document may have several among the best."""


class Rankings:
    """The dense and the lexical ranking of a store's documents; what is read from it is kept until it changes."""

    def __init__(self, store: Store, similarity: str) -> None:
        self.store, self.similarity = store, similarity
        self._dense: tuple[str, Dense] | None = None
        self._lexical: tuple[str, Lexical] | None = None

    def prepare(self) -> None:
        """Make now what the first search would make: after documents were added."""
        self.store.tidy(self.similarity if not self._exact() else None)
        self._words()

    def dense(self, vectors: Vectors, top: int, where: Filter | None = None) -> list[list[Found]]:
        """For each query's vector the documents with the nearest chunks."""
        if not self._exact():
            return [self._approximate(vector[None], top, where) for vector in vectors]
        known = self._vectors()
        allowed = self.store.keys(where) if where else None

        def more(row: int, count: int) -> KeyScores:
            return known.search(vectors[row : row + 1], count, allowed)[0]

        first = known.search(vectors, _chunks(top), allowed)
        return [_documents(found, top, len(known), partial(more, row)) for row, found in enumerate(first)]

    def lexical(self, queries: Sequence[str], top: int, where: Filter | None = None) -> list[list[Found]]:
        """For each query the documents with chunks that share words with it."""
        known = self._words()
        allowed = self.store.keys(where) if where else None

        def more(row: int, count: int) -> KeyScores:
            return known.search([queries[row]], count, allowed)[0]

        first = known.search(queries, _chunks(top), allowed)
        return [_documents(found, top, len(known.keys), partial(more, row)) for row, found in enumerate(first)]

    def _approximate(self, vector: Vectors, top: int, where: Filter | None) -> list[Found]:
        def search(count: int) -> KeyScores:
            keys, near = self.store.nearest(vector[0], count, self.similarity, where)
            return Dense(keys, near, self.similarity).search(vector, count)[0]

        return _documents(search(_chunks(top)), top, self.store.count(), search)

    def _exact(self) -> bool:
        header = self.store.header() or {}
        return self.similarity == "manhattan" or self.store.count() * int(header.get("dim", 0)) * 4 <= EXACT_BYTES

    def _vectors(self) -> Dense:
        state = self.store.state()
        if self._dense is None or self._dense[0] != state:
            self._dense = (state, Dense(*self.store.vectors(), self.similarity))
        return self._dense[1]

    def _words(self) -> Lexical:
        state = self.store.state()
        if self._lexical is None or self._lexical[0] != state:
            folder = self.store.beside / "lexical"
            known = Lexical.load(folder, state)
            if known is None:
                known = Lexical.build(*self.store.texts())
                known.save(folder, state)
            self._lexical = (state, known)
        return self._lexical[1]


def _chunks(top: int) -> int:
    return top * _CHUNKS_PER_DOCUMENT


def _documents(found: KeyScores, top: int, total: int, search: Callable[[int], KeyScores]) -> list[Found]:
    """The best chunk of each document, best first; `search` is asked for more chunks until there are enough."""
    count = _chunks(top)
    while True:
        best: dict[str, Found] = {}
        for key, score in found:
            document = document_of(key)
            best.setdefault(document, Found(document, key, score))
        if len(best) >= top or count >= total or len(found) < min(count, total):
            return list(best.values())[:top]
        count *= 4
        found = search(count)
