"""Proof that an index is whole: what must hold whenever a process that wrote to it was killed."""

from __future__ import annotations

import numpy as np

from decoder2vec.errors import StoreError
from decoder2vec.search.store import Chunk, Store

_AT_ONCE = 1000


def verify(store: Store, dim: int) -> None:
    """Every document is there once and whole, with a sound vector for each chunk; an error names what is not."""
    keys, vectors = store.vectors()
    if len(set(keys)) != len(keys):
        twice = sorted(key for key in set(keys) if keys.count(key) > 1)
        raise StoreError(f"The index holds {len(twice)} chunks twice, such as {twice[0]!r}; make it again.")
    if vectors.shape != (len(keys), dim) or not np.isfinite(vectors).all():
        raise StoreError("The index holds vectors that are damaged; make it again.")
    documents: dict[str, list[Chunk]] = {}
    for begin in range(0, len(keys), _AT_ONCE):
        for chunk in store.chunks(keys[begin : begin + _AT_ONCE]).values():
            documents.setdefault(chunk.document, []).append(chunk)
    for name, chunks in documents.items():
        if sorted(chunk.number for chunk in chunks) != list(range(chunks[0].total)):
            raise StoreError(f"The index holds {name!r} in part only; delete it and index it again.")
        if len({chunk.digest for chunk in chunks}) > 1:
            raise StoreError(f"The index holds old and new parts of {name!r}; delete it and index it again.")
    if sum(map(len, documents.values())) != len(keys):
        raise StoreError("The index holds chunks that cannot be found by their keys; make it again.")
