"""Encode texts through a cache: cached vectors are returned at once, the other texts go to the batcher."""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import check_finite
from decoder2vec.serving.batcher import Batcher, Vectors

_ENTRY_OVERHEAD = 300
"""Bytes of memory that a cache entry takes besides the vector itself."""


class BatchKey(NamedTuple):
    """Texts with the same key can be encoded in one batch."""

    model: str
    role: str = ""
    """Empty, "query", "document", "layers" for the states of every layer, "chunks" or "pairs"."""


class VectorCache:
    """The most recently used vectors, up to a size. It holds digests of texts, never a text.

    Args:
        megabytes: Maximum size; 0 disables the cache.
    """

    def __init__(self, megabytes: float) -> None:
        if not 0 <= megabytes < math.inf:  # also false for NaN
            raise InputError(f"The size of the cache is {megabytes} megabytes; give a number of 0 or more.")
        self._max_bytes = int(megabytes * 2**20)
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: BatchKey, text: str) -> Vectors | None:
        """Return the vector of a text, or None if it is not cached."""
        if not self._max_bytes:
            return None
        digest = _digest(key, text)
        with self._lock:
            vector = self._vectors.get(digest)
            if vector is None:
                self.misses += 1
            else:
                self.hits += 1
                self._vectors.move_to_end(digest)
        return vector

    def put(self, key: BatchKey, text: str, vector: Vectors) -> None:
        """Cache a vector and evict the least recently used ones over the maximum size."""
        if not self._max_bytes:
            return
        entry = vector.copy()  # a view would keep the whole batch in memory
        entry.flags.writeable = False
        digest = _digest(key, text)
        with self._lock:
            replaced = self._vectors.pop(digest, None)
            self.bytes += _entry_bytes(entry) - (0 if replaced is None else _entry_bytes(replaced))
            self._vectors[digest] = entry
            while self.bytes > self._max_bytes:
                self.bytes -= _entry_bytes(self._vectors.popitem(last=False)[1])


@dataclass
class _Lookup:
    """The cached vectors of some texts, and a future for the missing ones."""

    vectors: list[Vectors | None]
    missing: list[int]
    future: Future[Vectors] | None


class CachedBatcher:
    """Encodes texts with a batcher behind a cache, for coroutines and for threads."""

    def __init__(self, batcher: Batcher, cache: VectorCache) -> None:
        self.batcher, self.cache = batcher, cache

    async def encode_async(self, key: BatchKey, texts: Sequence[str], token_counts: Sequence[int]) -> Vectors:
        """Return [texts, dim] vectors of one or more texts with these token counts.

        Raises:
            APIError: The queue is full (429).
            EncoderError: The encoder returned vectors that are not finite.
        """
        lookup = self._look_up(key, texts, token_counts, admitted=False)
        if lookup.future is None:
            return self._complete(key, texts, lookup, None)
        encoded: Vectors = await asyncio.wrap_future(lookup.future)
        return self._complete(key, texts, lookup, encoded)

    def encode(self, key: BatchKey, texts: Sequence[str], token_counts: Sequence[int]) -> Vectors:
        """Do the same in a thread, which it blocks, for a request that was admitted: a full queue does not stop it."""
        lookup = self._look_up(key, texts, token_counts, admitted=True)
        return self._complete(key, texts, lookup, lookup.future.result() if lookup.future else None)

    def _look_up(self, key: BatchKey, texts: Sequence[str], token_counts: Sequence[int], *, admitted: bool) -> _Lookup:
        vectors = [self.cache.get(key, text) for text in texts]
        missing = [row for row, vector in enumerate(vectors) if vector is None]
        if not missing:
            return _Lookup(vectors, missing, None)
        missing_texts, missing_counts = [texts[row] for row in missing], [token_counts[row] for row in missing]
        return _Lookup(vectors, missing, self.batcher.submit(key, missing_texts, missing_counts, admitted=admitted))

    def _complete(self, key: BatchKey, texts: Sequence[str], lookup: _Lookup, encoded: Vectors | None) -> Vectors:
        if encoded is not None:
            check_finite(encoded, [texts[row] for row in lookup.missing])
            for row, vector in zip(lookup.missing, encoded, strict=True):
                lookup.vectors[row] = vector
                self.cache.put(key, texts[row], vector)
        return np.stack([vector for vector in lookup.vectors if vector is not None])


def _entry_bytes(vector: Vectors) -> int:
    return vector.nbytes + _ENTRY_OVERHEAD


def _digest(key: BatchKey, text: str) -> bytes:
    content = "\0".join([*key, text]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()
