"""Documents into a store, batch by batch: each batch is whole or not there, so the work can be stopped at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoder2vec.search.chunks import Chunking, Measure, measure_of
from decoder2vec.search.documents import Document, Skipped, problem
from decoder2vec.search.space import vectors_of
from decoder2vec.search.store import Chunk, Store

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
