"""Rank documents by embedding similarity (exact, in memory, or through the store's index) and by BM25."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import StorageError
from decoder2vec.maths.similarity import normalise, similarity_matrix
from decoder2vec.search.hybrid import FullScores, RankedDocument
from decoder2vec.search.store import ChunkStore, Embeddings, MetadataFilter, document_id_of
from decoder2vec.storage import atomic_folder, damaged_files, parse_json, write_checksums
from decoder2vec.text.bm25 import K1, SETTINGS, new_index, tokenise_queries, tokenise_to_ids

MAX_EXACT_BYTES = 512 * 2**20
"""Vectors up to this size are kept in memory and searched exactly; larger ones have an approximate index by default."""
_CHUNKS_PER_DOCUMENT = 4
"""Chunks retrieved for each document wanted, since a document may have several among the best."""
_MAX_SCORE_BYTES = 256 * 2**20
"""Size of the score matrix that is held at once."""
_LEXICAL_FOLDER = "lexical"
_KEYS_FILE = "keys.json"

ScoredKeys = list[tuple[str, float]]
"""Chunk keys with their scores, best first."""


class DocumentRanker:
    """Ranks the documents of a store. Vectors and BM25 index are loaded once and again after every change."""

    def __init__(self, store: ChunkStore, similarity: str) -> None:
        self.store, self.similarity = store, similarity
        self._dense: tuple[str, DenseSearch] | None = None
        self._lexical: tuple[str, LexicalSearch] | None = None

    @property
    def ann_kinds(self) -> tuple[str, ...]:
        """Kinds of approximate index that there are for these vectors, the default first."""
        return () if self.similarity == "manhattan" else self.store.ann_kinds(self._dim())

    def prepare(self, new_ann: str | None = None) -> None:
        """Optimise the store and build the BM25 index, so that the first search need not.

        With `new_ann` the approximate index is built anew, and is of this kind.
        """
        ann = self._resolve(new_ann) if new_ann else self._ann()
        self.store.optimise(ann, self.similarity, rebuild=new_ann is not None)
        self._lexical_search()

    def verify_files(self) -> None:
        """Raise StorageError if a file of the BM25 index is not as it was written."""
        folder = self.store.local_folder / _LEXICAL_FOLDER
        if damaged := damaged_files(folder):
            raise StorageError(
                f"{folder / damaged[0]} is damaged; delete {folder}, which the next search writes again."
            )

    def dense(
        self, query_vectors: Embeddings, top: int, filter: MetadataFilter | None = None, *, exact: bool = False
    ) -> list[list[RankedDocument]]:
        """Return for each query vector the `top` documents with the most similar chunks.

        They are found by the approximate index, if there is one, unless `exact`.
        """
        if self._ann() != "none" and not (exact and self._fits_in_memory()):
            return [self._nearest(vector[None], top, filter, exact) for vector in query_vectors]
        chunks = self._dense_search()
        allowed = self.store.matching_keys(filter) if filter else None

        def search_row(row: int, count: int) -> ScoredKeys:
            return chunks.search(query_vectors[row : row + 1], count, allowed)[0]

        first = chunks.search(query_vectors, top * _CHUNKS_PER_DOCUMENT, allowed)
        return [_best_documents(scored, top, len(chunks), partial(search_row, row)) for row, scored in enumerate(first)]

    def lexical(
        self, queries: Sequence[str], top: int, filter: MetadataFilter | None = None
    ) -> list[list[RankedDocument]]:
        """Return for each query the `top` documents with the highest BM25 scores; all share a word with the query."""
        chunks = self._lexical_search()
        allowed = self.store.matching_keys(filter) if filter else None

        def search_row(row: int, count: int) -> ScoredKeys:
            return chunks.search([queries[row]], count, allowed)[0]

        first = chunks.search(queries, top * _CHUNKS_PER_DOCUMENT, allowed)
        return [_best_documents(scored, top, len(chunks), partial(search_row, row)) for row, scored in enumerate(first)]

    def full_scores(self, queries: Sequence[str]) -> list[FullScores]:
        """Return the dense and the lexical score of a text that says all that each query says."""
        dense = 1.0 if self.similarity == "cosine" else 0.0  # a distance of 0; a dot product has no highest value
        return [FullScores(dense, lexical) for lexical in self._lexical_search().full_scores(queries)]

    def _nearest(
        self, query_vector: Embeddings, top: int, filter: MetadataFilter | None, exact: bool
    ) -> list[RankedDocument]:
        """Take candidates from the store, and score them exactly."""

        def search(count: int) -> ScoredKeys:
            keys, vectors = self.store.nearest(query_vector[0], count, self.similarity, filter, exact=exact)
            return DenseSearch(keys, vectors, self.similarity).search(query_vector, count)[0]

        return _best_documents(search(top * _CHUNKS_PER_DOCUMENT), top, self.store.count_chunks(), search)

    def _ann(self) -> str:
        """Kind of the approximate index, or "none" if search is exact."""
        return self._resolve(str((self.store.header() or {}).get("ann", "auto")))

    def _resolve(self, kind: str) -> str:
        return choose_ann(kind, self.ann_kinds, self.store.count_chunks(), self._dim())

    def _fits_in_memory(self) -> bool:
        return self.store.count_chunks() * self._dim() * 4 <= MAX_EXACT_BYTES

    def _dim(self) -> int:
        return int((self.store.header() or {}).get("dim", 0))

    def _dense_search(self) -> DenseSearch:
        revision = self.store.revision()
        if self._dense is None or self._dense[0] != revision:
            self._dense = (revision, DenseSearch(*self.store.read_vectors(), self.similarity))
        return self._dense[1]

    def _lexical_search(self) -> LexicalSearch:
        revision = self.store.revision()
        if self._lexical is None or self._lexical[0] != revision:
            folder = self.store.local_folder / _LEXICAL_FOLDER
            search = LexicalSearch.load(folder, revision)
            if search is None:
                search = LexicalSearch.build(*self.store.read_texts())
                search.save(folder, revision)
            self._lexical = (revision, search)
        return self._lexical[1]


def choose_ann(kind: str, kinds: Sequence[str], n_chunks: int, dim: int) -> str:
    """Return the kind of approximate index that "auto" stands for, by the size of the vectors; others unchanged."""
    if kind != "auto":
        return kind
    return "none" if n_chunks * dim * 4 <= MAX_EXACT_BYTES or not kinds else kinds[0]


class DenseSearch:
    """Exact search: one matrix product over the vectors of all chunks, in memory."""

    def __init__(self, keys: Sequence[str], vectors: Embeddings, similarity: str) -> None:
        self.keys, self.similarity = list(keys), similarity
        self._rows = np.array(vectors, np.float32)
        if not np.isfinite(self._rows).all():  # they would be the first hits of every query
            raise StorageError("The index holds damaged vectors; create it again.")
        if similarity == "cosine":
            self._rows /= np.maximum(np.linalg.norm(self._rows, axis=1, keepdims=True), 1e-12)

    def __len__(self) -> int:
        return len(self.keys)

    def search(self, queries: Embeddings, count: int, allowed: set[str] | None = None) -> list[ScoredKeys]:
        """Return the `count` most similar chunks for each query vector, only among the `allowed` keys if given."""
        rows, keys = self._rows, self.keys
        if allowed is not None:
            indices = [index for index, key in enumerate(keys) if key in allowed]
            rows, keys = rows[indices], [keys[index] for index in indices]
        if not keys:
            return [[] for _ in queries]
        batch_size = max(1, _MAX_SCORE_BYTES // (4 * len(keys)))
        results: list[ScoredKeys] = []
        for start in range(0, len(queries), batch_size):
            for scores in self._similarities(np.asarray(queries[start : start + batch_size], np.float32), rows):
                best = _largest(scores, count)
                ranked = sorted(zip(scores[best].tolist(), best.tolist(), strict=True), key=_best_first)
                results.append([(keys[index], score) for score, index in ranked])
        return results

    def _similarities(self, queries: Embeddings, rows: Embeddings) -> Embeddings:
        """[queries, chunks] similarities. Products are in float32: fast, and exact to six digits."""
        if self.similarity not in ("cosine", "dot"):
            return np.asarray(similarity_matrix(self.similarity, queries, rows), np.float32)
        if self.similarity == "cosine":
            queries = normalise(queries)
        return np.asarray((rows @ queries[0])[None] if len(queries) == 1 else queries @ rows.T)


class LexicalSearch:
    """BM25 search over the words of chunks. English stop words are ignored; words of other languages all count."""

    def __init__(self, keys: Sequence[str], retriever: Any) -> None:
        self.keys, self._retriever = list(keys), retriever

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def build(cls, keys: Sequence[str], texts: Sequence[str]) -> LexicalSearch:
        """Build the BM25 index of the texts."""
        words = tokenise_to_ids(texts)
        if not any(words.ids):
            return cls(keys, None)  # bm25s cannot index texts without a word
        retriever = new_index()
        retriever.index(words, show_progress=False)
        return cls(keys, retriever)

    def save(self, folder: Path, revision: str) -> None:
        """Write the index to a folder, replacing its content; `revision` is that of the indexed chunks."""
        with atomic_folder(folder, replace=True) as temporary:
            note = {"state": revision, "bm25": SETTINGS, "words": self._retriever is not None, "keys": self.keys}
            (temporary / _KEYS_FILE).write_text(json.dumps(note), encoding="utf-8")
            if self._retriever is not None:
                self._retriever.save(temporary, show_progress=False)
            write_checksums(temporary, [file.name for file in temporary.iterdir()])

    @classmethod
    def load(cls, folder: Path, revision: str) -> LexicalSearch | None:
        """Return the saved index, or None if it is missing, damaged, of another revision or of other BM25 settings."""
        try:
            note = parse_json((folder / _KEYS_FILE).read_text(encoding="utf-8"))
            if (note["state"], note["bm25"]) != (revision, SETTINGS) or damaged_files(folder):
                return None
            retriever = new_index().load(folder, mmap=True, show_progress=False) if note["words"] else None
            return cls(note["keys"], retriever)
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            return None  # the caller rebuilds it

    def search(self, queries: Sequence[str], count: int, allowed: set[str] | None = None) -> list[ScoredKeys]:
        """Return for each query up to `count` chunks that share words with it, only among `allowed` keys if given."""
        if self._retriever is None or not self.keys:
            return [[] for _ in queries]
        mask = None if allowed is None else np.array([key in allowed for key in self.keys], np.float32)
        best_indices, best_scores = self._retriever.retrieve(
            tokenise_queries(queries), k=min(count, len(self.keys)), show_progress=False, weight_mask=mask
        )
        return [
            [(self.keys[index], score) for index, score in zip(indices, scores, strict=True) if score > 0]
            for indices, scores in zip(best_indices.tolist(), best_scores.tolist(), strict=True)
        ]

    def full_scores(self, queries: Sequence[str]) -> list[float]:
        """Return for each query the score of a chunk of average length that has every word of the query once."""
        if self._retriever is None:
            return [0.0 for _ in queries]
        starts, ids = self._retriever.scores["indptr"], self._retriever.vocab_dict

        def inverse_document_frequency(word: str) -> float:
            count = int(starts[ids[word] + 1] - starts[ids[word]]) if word in ids else 0
            return math.log(1 + (len(self) - count + 0.5) / (count + 0.5))

        return [sum(map(inverse_document_frequency, words)) / (1 + K1) for words in tokenise_queries(queries)]


def _largest(scores: Embeddings, count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest scores, in any order."""
    if count >= len(scores):
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[len(scores) - count :]


def _best_first(scored: tuple[float, int]) -> tuple[float, int]:
    """Sort key: by score, then by index. Scores equal to six digits tie, so that the order is the same everywhere."""
    return -round(scored[0], 6), scored[1]


def _best_documents(
    scored: ScoredKeys, top: int, total: int, search: Callable[[int], ScoredKeys]
) -> list[RankedDocument]:
    """Return the best chunk of each document, calling `search` for more of the `total` chunks until `top` are found."""
    count = top * _CHUNKS_PER_DOCUMENT
    while True:
        best: dict[str, RankedDocument] = {}
        for key, score in scored:
            id = document_id_of(key)
            best.setdefault(id, RankedDocument(id, key, score))
        if len(best) >= top or count >= total or len(scored) < min(count, total):
            return list(best.values())[:top]
        count *= 4
        scored = search(count)
