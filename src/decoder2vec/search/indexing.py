"""Write documents to a store: encode new and changed ones, move renamed ones, remove those that left their folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.search.chunks import Chunking, LengthFunction, encode_together, token_lengths
from decoder2vec.search.documents import Document, Skipped, unusable_reason
from decoder2vec.search.sources import Origin, SourceRecord
from decoder2vec.search.store import Chunk, ChunkStore, Embeddings, encode_texts

_MIN_BATCH_CHUNKS = 64
"""Chunks that are encoded and stored together, at least; a kill loses at most one such batch."""
_MAX_BATCH_CHUNKS = 4096
"""Chunks that are stored together, if most of them need not be encoded."""
_SOURCES_FILE = "sources.json"


@dataclass
class IndexChanges:
    """What `Index.add` did so far."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    moved: int = 0
    """Documents of renamed files, which are not encoded again."""
    removed: int = 0
    """Documents that are no longer in the folder they came from."""
    skipped: list[Skipped] = field(default_factory=list)
    encoded_chunks: int = 0

    @property
    def processed(self) -> int:
        """Number of documents seen so far, skipped ones included."""
        return self.added + self.updated + self.unchanged + self.moved + len(self.skipped)


def add_documents(
    store: ChunkStore,
    encoder: Any,
    chunking: Chunking,
    documents: Iterable[Document | Skipped],
    folder: Path | None,
    progress: Callable[[IndexChanges], object],
    *,
    read_first: bool = False,
) -> IndexChanges:
    """Store new and changed documents, batch by batch; mirror the `folder` that they are from, if any.

    The caller holds the write lock: else a document that another process adds meanwhile would count as gone.

    With `read_first` all documents are read before the first is encoded, so that the time left is known.

    A document that was read from the folder before and is no longer in it is removed, unless its file or subfolder is
    still there and could not be read completely.
    """
    if read_first:
        with current_progress().phase("reading"):
            documents = list(documents)
    sources = source_record(store)
    dim = int((store.header() or {})["dim"])
    adding = _Adding(store.document_digests(), folder, sources.of(folder) if folder else {})
    changes = adding.changes
    n_at_once = _MIN_BATCH_CHUNKS * (1 + getattr(encoder, "n_workers", 0))  # enough for every worker of a `RayEncoder`
    batches: Iterable[list[_ChunkVector]] = _chunk_batches(
        adding.changed(documents), chunking, token_lengths(encoder), dim, n_at_once
    )
    n_texts = None
    if read_first:
        with current_progress().phase("tokenising"):
            batches = list(batches)
        n_texts = sum(map(len, batches))
    with current_progress().phase("encoding", n_texts):
        for batch in batches:
            ids = {chunk.document for chunk, _ in batch}
            updated = ids & adding.stored.keys()
            vectors = _vectors(encoder, chunking, batch)
            store.write_chunks([chunk for chunk, _ in batch], vectors, replace=bool(updated))
            changes.updated += len(updated)
            changes.added += len(ids - updated)
            changes.encoded_chunks += len(batch)
            progress(changes)
    for start in range(0, len(adding.moves), _MIN_BATCH_CHUNKS):
        _move(store, adding.moves[start : start + _MIN_BATCH_CHUNKS])
    changes.moved = len(adding.moves)
    moved_away = {move.old_id for move in adding.moves} - adding.seen
    removed = adding.removed_ids() - moved_away
    changes.removed = len(removed)
    store.delete_documents(sorted(removed | moved_away))
    if folder:
        sources.replace(folder, {id: adding.origins[id] for id in adding.origins.keys() - removed - moved_away})
    else:
        sources.forget(adding.seen)
    progress(changes)
    return changes


def source_record(store: ChunkStore) -> SourceRecord:
    """Return the record of the folders that the documents of a store came from."""
    return SourceRecord(store.local_folder / _SOURCES_FILE)


class _Move(NamedTuple):
    old_id: str
    document: Document
    """What the stored document becomes; its text is the same."""
    digest: str


class _Adding:
    """One run of `add_documents`: what is stored, what was seen, and what is to be moved."""

    def __init__(self, stored: dict[str, str], folder: Path | None, recorded: dict[str, Origin]) -> None:
        self.stored = stored
        """Document id -> digest of all stored documents."""
        self.seen: set[str] = set()
        self.origins = {id: origin for id, origin in recorded.items() if id in stored}
        """Documents of the folder, of which those read in this run are up to date."""
        self.moves: list[_Move] = []
        self.changes = IndexChanges()
        self._folder = folder
        self._left = {
            origin.content: id
            for id, origin in self.origins.items()
            # an id that does not begin with the path is a row's own and may be in another file now
            if folder and id.startswith(origin.path) and _is_gone(folder / origin.path)
            if stored[id] == origin.digest
        }

    def changed(self, documents: Iterable[Document | Skipped]) -> Iterator[tuple[Document, str]]:
        """Yield the documents that must be encoded, with their digests; note all others in the fields."""
        for document in documents:
            if isinstance(document, Skipped):
                self.changes.skipped.append(document)
            elif document.id in self.seen:
                reason = "another document has the same id; the first is kept"
                self.changes.skipped.append(Skipped(document.id, reason))
            elif reason := unusable_reason(document):
                self.changes.skipped.append(Skipped(document.id, reason))
            else:
                self.seen.add(document.id)
                digest, moved_from = document.digest(), self._moved_from(document)
                if self.stored.get(document.id) == digest:
                    self.changes.unchanged += 1
                elif moved_from:
                    self.moves.append(_Move(moved_from, replace(document, text=""), digest))
                else:
                    yield document, digest

    def _moved_from(self, document: Document) -> str | None:
        """Return the id of the stored document that this one was before its file was renamed."""
        if not self._folder:
            return None
        origin, before = Origin.of(document), self.origins.get(document.id)
        self.origins[document.id] = origin
        if document.id not in self.stored:
            return self._left.pop(origin.content, None)
        if before and before.content == origin.content and before.digest == self.stored[document.id]:
            return document.id  # a row with an id of its own, in a renamed table
        return None

    def removed_ids(self) -> set[str]:
        """Return the ids of the documents that are no longer in the folder."""
        unread = {skipped.path for skipped in self.changes.skipped}
        unread_folders = tuple(path for path in unread if path.endswith("/"))
        return {
            id
            for id, origin in self.origins.items()
            if id not in self.seen and origin.path not in unread and not origin.path.startswith(unread_folders)
        }


def _is_gone(path: Path) -> bool:
    """Tell whether a file does not exist; in a folder that cannot be read, it may."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _move(store: ChunkStore, moves: Sequence[_Move]) -> None:
    """Store the chunks and vectors of documents under other ids, with other metadata."""
    move_of = {move.old_id: move for move in moves}
    keys, vectors = store.read_vectors(list(move_of))
    chunks = store.read_chunks(keys)
    moved = [
        replace(chunks[key], document=move.document.id, metadata=move.document.metadata, digest=move.digest)
        for key in keys
        if (move := move_of[chunks[key].document])
    ]
    store.write_chunks(moved, vectors, replace=any(move.old_id == move.document.id for move in moves))


_ChunkVector = tuple[Chunk, Embeddings | None]
"""A chunk, and its vector where the document came with one."""


def _chunk_batches(
    documents: Iterable[tuple[Document, str]],
    chunking: Chunking,
    lengths_of: LengthFunction,
    dim: int,
    n_at_once: int,
) -> Iterator[list[_ChunkVector]]:
    """Yield batches of chunks, of which about `n_at_once` must be encoded.

    All chunks of a document are in the same batch, so that they are stored in one step.
    """
    batch: list[_ChunkVector] = []
    n_to_encode = 0
    for document, digest in documents:
        texts = [document.text]
        if document.vector is None:
            texts = chunking.split(document.text, lengths_of)
            n_to_encode += len(texts)
        elif chunking.late:
            raise InputError(
                f"{document.id!r} comes with a vector, but the chunks of this index are encoded together; create an "
                "index without late, or add the text alone."
            )
        elif document.vector.shape != (dim,) or not np.isfinite(document.vector).all():
            raise InputError(f"{document.id!r} comes with a vector that does not fit; give {dim} finite numbers.")
        chunks = [
            Chunk(document.id, number, len(texts), text, document.metadata, digest) for number, text in enumerate(texts)
        ]
        batch += [(chunk, document.vector) for chunk in chunks]
        if n_to_encode >= n_at_once or len(batch) >= _MAX_BATCH_CHUNKS:
            yield batch
            batch, n_to_encode = [], 0
    if batch:
        yield batch


def _vectors(encoder: Any, chunking: Chunking, batch: list[_ChunkVector]) -> Embeddings:
    """The vectors of chunks; those that no document came with are computed."""
    if chunking.late:
        return encode_together(encoder, chunking, [chunk for chunk, _ in batch])
    texts = [chunk.text for chunk, vector in batch if vector is None]
    computed = iter(encode_texts(encoder, texts, "document") if texts else ())
    return np.stack([next(computed) if vector is None else vector for _, vector in batch])
