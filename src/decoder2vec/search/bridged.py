"""Items of other origin as documents: their vectors come through a bridge into the space of the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoder2vec.errors import InputError
from decoder2vec.search.documents import Document, DocumentSource, Skipped, to_documents
from decoder2vec.search.store import EmbeddingSpace

if TYPE_CHECKING:
    from decoder2vec.bridge.bridge import Bridge

BRIDGE_KEY = "bridge"
"""Metadata of an item: the fingerprint of the bridge that it came through."""
_AT_ONCE = 4096
"""Vectors that go through the bridge before the first of them is stored."""


def bridged_documents(
    space: EmbeddingSpace,
    vectors: Any,
    bridge: Bridge | None,
    source: DocumentSource | None,
    columns: Sequence[str] = (),
) -> Iterator[Document]:
    """Return the items as documents with vectors.

    Args:
        space: The space of the index.
        vectors: [items, dim] vectors.
        bridge: The bridge.
        source: Id, text and metadata of each item; those without an id are called "item 0", "item 1" and so on.
        columns: Columns of the text, as for other documents.

    Raises:
        InputError: One of vectors and bridge is missing, the bridge leads to another encoder, a vector cannot be used,
            or there is not one document for each vector.
    """
    if vectors is None or bridge is None:
        raise InputError("Give both: `vectors`, and the bridge that they come `through`.")
    from decoder2vec.bridge.vectors import check_vectors

    table = check_vectors(vectors, "vectors", dim=bridge.dim)
    if bridge.encoder.fingerprint != space.fingerprint:
        raise InputError("The bridge leads to another encoder than that of this index; create one with its encoder.")
    if source is None:
        source = [f"item {row}" for row in range(len(table))]
    if not isinstance(source, str | Path):  # items may share a text, and so cannot be named by it
        source = [
            {"id": f"item {row}", "text": each} if isinstance(each, str) else each for row, each in enumerate(source)
        ]
    texts = [_usable(document) for document in to_documents(source, columns)]
    if len(texts) != len(table):
        raise InputError(f"There are {len(table)} vectors and {len(texts)} documents; give one for each.")
    return _encoded(table, bridge, texts)


def _encoded(table: Any, bridge: Bridge, documents: list[Document]) -> Iterator[Document]:
    name = bridge.fingerprint
    for start in range(0, len(table), _AT_ONCE):
        rows = table[start : start + _AT_ONCE]
        for row, vector, document in zip(rows, bridge.encode(rows), documents[start : start + _AT_ONCE], strict=True):
            origin = f"{name} {hashlib.sha256(row.tobytes()).hexdigest()[:16]}"
            yield replace(document, metadata={**document.metadata, BRIDGE_KEY: name}, vector=vector, origin=origin)


def _usable(document: Document | Skipped) -> Document:
    """The document; one that was skipped would shift all that follow against their vectors."""
    if isinstance(document, Skipped):
        raise InputError(f"{document.name} cannot be read: {document.reason}; each vector needs its document.")
    return document
