"""An encoder that reads through the queue, for everything that takes an encoder: search, match, rerank."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from decoder2vec.serving.batcher import Vectors as Array
from decoder2vec.serving.models import Served
from decoder2vec.serving.vectors import Key, Vectors

_AT_ONCE = 256
"""Texts put into the queue together: the vectors of a long list are not all held twice."""


class QueuedEncoder:
    """Looks like the encoder behind it; only its texts go into the queue, beside everybody else's."""

    def __init__(self, served: Served, vectors: Vectors) -> None:
        self._served, self._vectors = served, vectors

    def encode(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """Vectors of texts; waits for them, so it is for threads and not for coroutines."""
        return self._read(inputs, "")

    def encode_query(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """The same, read as queries."""
        return self._read(inputs, "query")

    def encode_document(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """The same, read as documents."""
        return self._read(inputs, "document")

    def __getattr__(self, name: str) -> Any:
        """What else the encoder has. Its methods are bound to this object: when they encode, they do it here."""
        if name.startswith("__"):
            raise AttributeError(name)
        encoder = self._served.encoder
        method = getattr(type(encoder), name, None)
        return MethodType(method, self) if isinstance(method, FunctionType) else getattr(encoder, name)

    def _read(self, inputs: str | Sequence[str], role: str) -> Array:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        key, count = Key(self._served.id, role), self._served.count
        parts = [texts[begin : begin + _AT_ONCE] for begin in range(0, len(texts), _AT_ONCE)]
        found = [self._vectors.wait_for(key, part, count.read(count(part))) for part in parts]
        vectors = np.concatenate(found) if found else np.empty((0, self._served.dim), np.float32)
        return vectors[0] if isinstance(inputs, str) else vectors
