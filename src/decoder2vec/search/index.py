"""Which store an index lies in: a folder or a database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import from_table, to_table
from decoder2vec.encoder import Encoder, is_encoder_folder
from decoder2vec.errors import InputError, StorageError, unknown_name
from decoder2vec.search.chunks import Chunking, Measure, measure_of
from decoder2vec.search.documents import Document, Skipped, problem
from decoder2vec.search.hybrid import Found, Fusion
from decoder2vec.search.ranking import Rankings
from decoder2vec.search.rerank import Reranker
from decoder2vec.search.snippets import Snippet, snippets
from decoder2vec.search.store import Chunk, Filter, Space, Store, Vectors, vectors_of


def open_store(place: str | Path) -> Store:
    """The store at a folder, or in a database at `postgresql://host/database#name`."""
    if str(place).startswith(("postgresql://", "postgres://")):
        from decoder2vec.search.postgres_store import PostgresStore

        return PostgresStore(str(place))
    if "://" in str(place):
        raise InputError(f"{place} is no place for an index; give a folder or postgresql://host/database#name.")
    from decoder2vec.search.lance_store import LanceStore

    return LanceStore(Path(place))


_AT_ONCE = 1000


def verify(store: Store, dim: int) -> None:
    """Every document is there once and whole, with a sound vector for each chunk; an error names what is not."""
    keys, vectors = store.vectors()
    if len(set(keys)) != len(keys):
        twice = sorted(key for key in set(keys) if keys.count(key) > 1)
        raise StorageError(f"The index holds {len(twice)} chunks twice, such as {twice[0]!r}; make it again.")
    if vectors.shape != (len(keys), dim) or not np.isfinite(vectors).all():
        raise StorageError("The index holds vectors that are damaged; make it again.")
    documents: dict[str, list[Chunk]] = {}
    for begin in range(0, len(keys), _AT_ONCE):
        for chunk in store.chunks(keys[begin : begin + _AT_ONCE]).values():
            documents.setdefault(chunk.document, []).append(chunk)
    for name, chunks in documents.items():
        if sorted(chunk.number for chunk in chunks) != list(range(chunks[0].total)):
            raise StorageError(f"The index holds {name!r} in part only; delete it and index it again.")
        if len({chunk.digest for chunk in chunks}) > 1:
            raise StorageError(f"The index holds old and new parts of {name!r}; delete it and index it again.")
    if sum(map(len, documents.values())) != len(keys):
        raise StorageError("The index holds chunks that cannot be found by their keys; make it again.")


_BATCH = 64
"""Chunks that are encoded and stored together, at least: what a kill can lose."""


@dataclass
class Changes:
    """What became of the documents so far."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    chunks: int = 0
    """Chunks that were encoded."""

    @property
    def seen(self) -> int:
        """Documents that were looked at."""
        return self.added + self.updated + self.unchanged + len(self.skipped)


def put_documents(
    store: Store,
    encoder: Any,
    chunking: Chunking,
    documents: Iterable[Document | Skipped],
    progress: Callable[[Changes], object] = lambda _: None,
) -> Changes:
    """Store what is new or has changed; `progress` is called after every batch."""
    changes = Changes()
    with store.writing():
        known = store.documents()
        for batch in _batches(_wanted(documents, known, changes), chunking, measure_of(encoder)):
            vectors = vectors_of(encoder, [chunk.text for chunk in batch], "document")
            names = {chunk.document for chunk in batch}
            old = names & known.keys()
            store.put(batch, np.asarray(vectors), replace=bool(old))
            changes.updated += len(old)
            changes.added += len(names - old)
            changes.chunks += len(batch)
            progress(changes)
    progress(changes)
    return changes


def _wanted(
    documents: Iterable[Document | Skipped], known: dict[str, str], changes: Changes
) -> Iterator[tuple[Document, str]]:
    """Documents to be stored, with their digests; the others are counted."""
    seen: set[str] = set()
    for document in documents:
        if isinstance(document, Skipped):
            changes.skipped.append(document)
        elif document.id in seen:
            changes.skipped.append(Skipped(document.id, "another document has the same id; the first is kept"))
        elif reason := problem(document):
            changes.skipped.append(Skipped(document.id, reason))
        else:
            seen.add(document.id)
            digest = document.digest()
            if known.get(document.id) == digest:
                changes.unchanged += 1
            else:
                yield document, digest


def _batches(documents: Iterable[tuple[Document, str]], chunking: Chunking, measure: Measure) -> Iterator[list[Chunk]]:
    """Chunks of whole documents: the parts of one are never stored apart."""
    batch: list[Chunk] = []
    for document, digest in documents:
        pieces = chunking.cut(document.text, measure)
        batch += [
            Chunk(document.id, number, len(pieces), piece, document.metadata, digest)
            for number, piece in enumerate(pieces)
        ]
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


MODES = ("dense", "lexical", "hybrid")
_FORMAT = 1
_DEPTH = 100
"""Documents of each ranking that are fused, at least."""
_RERANKED = 30
"""Documents that are scored once more, at least."""


@dataclass(frozen=True)
class Header:
    """What an index says about itself."""

    id: str
    dim: int
    space: Space
    chunking: Chunking
    fusion: Fusion = field(default_factory=Fusion)
    format: int = _FORMAT


@dataclass(frozen=True)
class Hit:
    """A document that was found."""

    id: str
    score: float
    """Comparable within one search only: a similarity, a sum of BM25 weights, a fused score or a reranker's."""
    text: str
    """Of the chunk that was found; a short document is one chunk."""
    metadata: dict[str, Any]
    snippet: Snippet
    chunk: int = 0
    """Which chunk of the document, counted from 0."""


class Index:
    """Documents with their vectors and words, in a folder or a database. Make one with `create` or `open`."""

    def __init__(self, place: str | Path, store: Store, header: Header, encoder: Any) -> None:
        self.place, self.store, self.header, self.encoder = str(place), store, header, encoder
        self._rankings = Rankings(store, header.space.similarity)

    @classmethod
    def create(cls, place: str | Path, encoder: Any, chunking: Chunking | None = None) -> Index:
        """A new, empty index at a folder or at `postgresql://host/database#name`, for anything with `encode`."""
        store = open_store(place)
        if store.header() is not None:
            raise InputError(f"There is an index at {place} already; open it instead.")
        space = Space.of(encoder)
        header = Header(uuid.uuid4().hex, space.dim, space, (chunking or Chunking()).within(encoder))
        with store.writing():
            store.create(space.dim)
            if isinstance(encoder, Encoder):
                encoder.save(store.beside / "encoder")
            store.write_header(to_table(header))  # last: before it there is no index
        return cls(place, store, header, encoder)

    @classmethod
    def open(cls, place: str | Path, encoder: Any = None) -> Index:
        """The index at a place, with the encoder it was made with, or one of the same embedding space."""
        store = open_store(place)
        said = store.header()
        if said is None:
            raise InputError(f"There is no index at {place}; make one with `d2v index`.")
        if said.get("format") != _FORMAT:
            raise StorageError(f"The index at {place} is of another version of this package; make it again.")
        header = from_table(Header, said)
        if encoder is None:
            inside = store.beside / "encoder"
            if not is_encoder_folder(inside):
                raise InputError(f"The encoder of {place} is not known on this machine; name it.")
            encoder = Encoder.load(inside)
        header.space.refuse_other(encoder, str(place))
        return cls(place, store, header, encoder)

    @classmethod
    def exists(cls, place: str | Path) -> bool:
        """Is there an index?"""
        return open_store(place).header() is not None

    def add(
        self, documents: Iterable[Document | Skipped], progress: Callable[[Changes], object] = lambda _: None
    ) -> Changes:
        """Add documents, or put them in place of those with the same ids; ones that have not changed cost nothing.

        Batches are stored as they are ready: if the work is stopped, the same call goes on where it was.
        """
        changes = put_documents(self.store, self.encoder, self.header.chunking, documents, progress)
        self._rankings.prepare()
        return changes

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents by id; returns the ids that were there."""
        with self.store.writing():
            known = self.store.documents()
            there = [id for id in dict.fromkeys(ids) if id in known]
            self.store.delete(there)
        return there

    def search(
        self,
        query: str,
        top: int = 10,
        mode: str = "hybrid",
        filter: Filter | None = None,
        reranker: Reranker | None = None,
    ) -> list[Hit]:
        """The documents that answer a query best: at most `top`, each once, by its best chunk.

        `mode` is "dense" (by meaning), "lexical" (by words, BM25) or "hybrid" (both, fused as `tune` found best).
        `filter` keeps documents whose metadata have these values: {"kind": "pet", "year": ["2024", "2025"]}.
        With a `reranker` the best 30 are scored once more.
        """
        depth = max(top, _RERANKED) if reranker else top
        ranked = self.rank([query], depth, mode, filter)[0]
        chunks = self.store.chunks([found.key for found in ranked])
        ranked = [found for found in ranked if found.key in chunks]  # one may have gone meanwhile
        if reranker and ranked:
            scores = reranker.rerank(query, [chunks[found.key].text for found in ranked])
            scored = [found._replace(score=float(score)) for found, score in zip(ranked, scores, strict=True)]
            ranked = sorted(scored, key=lambda found: -found.score)
        ranked = ranked[:top]
        shown = snippets(query, [chunks[found.key].text for found in ranked], self._encode)
        return [
            Hit(found.document, found.score, chunk.text, chunk.metadata, snippet, chunk.number)
            for found, snippet in zip(ranked, shown, strict=True)
            if (chunk := chunks[found.key])
        ]

    def rank(
        self, queries: Sequence[str], top: int = 10, mode: str = "hybrid", filter: Filter | None = None
    ) -> list[list[Found]]:
        """Only the ids and scores of `search`, for many queries at once."""
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if top < 1:
            raise InputError(f"A search for {top} documents finds nothing; ask for 1 or more.")
        if mode != "hybrid":
            return self.rank_one_way(queries, top, mode, filter)
        depth = max(top, _DEPTH)
        dense, lexical = (self.rank_one_way(queries, depth, way, filter) for way in ("dense", "lexical"))
        return [self.header.fusion(a, b)[:top] for a, b in zip(dense, lexical, strict=True)]

    def rank_one_way(
        self, queries: Sequence[str], top: int, mode: str, filter: Filter | None = None
    ) -> list[list[Found]]:
        """By meaning or by words alone; a query without a word finds nothing."""
        asked = [query for query in queries if query.strip()]
        if not asked:
            return [[] for _ in queries]
        if mode == "dense":
            ranked = self._rankings.dense(self._encode(asked, "query"), top, filter)
        else:
            ranked = self._rankings.lexical(asked, top, filter)
        answers = iter(ranked)
        return [next(answers) if query.strip() else [] for query in queries]

    def set_fusion(self, fusion: Fusion) -> None:
        """How hybrid search fuses from now on; kept in the index."""
        self.header = replace(self.header, fusion=fusion)
        self.store.write_header(to_table(self.header))

    @property
    def pair_head(self) -> Path:
        """Where a reranker that was learned for this index is kept."""
        return self.store.beside / "pair_head.safetensors"

    def count(self) -> tuple[int, int]:
        """How many documents and chunks there are."""
        return len(self.store.documents()), self.store.count()

    def close(self) -> None:
        """Let go of the store; a folder needs no closing, a database is left sooner."""
        self.store.close()

    def verify(self) -> None:
        """Prove that every document is there once and whole, with a vector for each chunk; an error if not."""
        verify(self.store, self.header.dim)

    def _encode(self, texts: list[str], role: str) -> Vectors:
        return vectors_of(self.encoder, texts, role)
