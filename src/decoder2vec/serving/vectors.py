"""Texts to vectors: those that are remembered at once, the others through the queue."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoder2vec.errors import UnsupportedError
from decoder2vec.serving.batcher import Batcher, Vectors

_ENTRY = 300
"""Bytes that a vector takes in memory beside its numbers."""


class Key(NamedTuple):
    """Texts with the same key can be read together."""

    model: str
    role: str = ""
    """What a text is read as: nothing in particular, a query, a document, or "layers" for every layer at once."""


class Cache:
    """The vectors used last, up to a size. It holds digests of texts, never a text."""

    def __init__(self, megabytes: float) -> None:
        self._room = int(megabytes * 2**20)
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Key, text: str) -> Vectors | None:
        """The vector of a text, if it is remembered."""
        if not self._room:
            return None
        name = _name(key, text)
        with self._lock:
            found = self._vectors.get(name)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._vectors.move_to_end(name)
        return found

    def put(self, key: Key, text: str, vector: Vectors) -> None:
        """Remember a vector, in place of those not used for longest."""
        if not self._room:
            return
        kept = vector.copy()  # not a view that keeps the whole batch alive
        kept.flags.writeable = False
        name = _name(key, text)
        with self._lock:
            before = self._vectors.pop(name, None)
            self.bytes += _size(kept) - (0 if before is None else _size(before))
            self._vectors[name] = kept
            while self.bytes > self._room:
                self.bytes -= _size(self._vectors.popitem(last=False)[1])


@dataclass
class _Asked:
    """An answer of which a part is known."""

    known: list[Vectors | None]
    missing: list[int]
    future: Future[Vectors] | None


class CachedVectors:
    """Vectors for whoever asks, in a coroutine or in a thread."""

    def __init__(self, batcher: Batcher, cache: Cache) -> None:
        self.batcher, self.cache = batcher, cache

    async def of(self, key: Key, texts: Sequence[str], sizes: Sequence[int], *, admitted: bool = False) -> Vectors:
        """[n, dim] vectors of n texts, one or more, of so many tokens each."""
        asked = self._ask(key, texts, sizes, admitted)
        if asked.future is None:
            return self._answer(key, texts, asked, None)
        return self._answer(key, texts, asked, await asyncio.wrap_future(asked.future))

    def wait_for(self, key: Key, texts: Sequence[str], sizes: Sequence[int]) -> Vectors:
        """The same for a thread, on behalf of a request that was let in."""
        asked = self._ask(key, texts, sizes, True)
        return self._answer(key, texts, asked, asked.future.result() if asked.future else None)

    def _ask(self, key: Key, texts: Sequence[str], sizes: Sequence[int], admitted: bool) -> _Asked:
        known = [self.cache.get(key, text) for text in texts]
        missing = [place for place, vector in enumerate(known) if vector is None]
        if not missing:
            return _Asked(known, missing, None)
        parts = [texts[place] for place in missing], [sizes[place] for place in missing]
        return _Asked(known, missing, self.batcher.submit(key, *parts, admitted=admitted))

    def _answer(self, key: Key, texts: Sequence[str], asked: _Asked, found: Any) -> Vectors:
        if found is not None:
            if not np.isfinite(found).all():
                raise UnsupportedError("The encoder gave numbers that are not finite; load it in float32.")
            for place, vector in zip(asked.missing, found, strict=True):
                asked.known[place] = vector
                self.cache.put(key, texts[place], vector)
        return np.stack([vector for vector in asked.known if vector is not None])


def _size(vector: Vectors) -> int:
    return vector.nbytes + _ENTRY


def _name(key: Key, text: str) -> bytes:
    said = "\0".join([*key, text]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=16).digest()
