"""Documents ranked by meaning and by words, from what a store holds at the moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from decoder2vec.search.dense import Dense, KeyScores
from decoder2vec.search.hybrid import Found
from decoder2vec.search.lexical import Lexical
from decoder2vec.search.store import Filter, Store, Vectors, document_of

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
