"""The vectors that an encoder gives to texts, each computed once; on disk if the encoder can say what it is.

What it cost is kept beside each vector, so the cost of an evaluation is known however often it was interrupted. Files
appear whole or not at all, so nothing needs a lock.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from decoder2vec.activations.store import text_key
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation.similarity import Matrix, as_array, is_sparse
from decoder2vec.storage import atomic_file, vectors_root

log = logging.getLogger(__name__)

_CHARACTERS, _TEXTS = 1 << 16, 4096
"""So much is encoded at once: what a kill can lose, a minute at most on a slow machine."""


class VectorCache:
    """Vectors of one encoder, asked in one way. `space` names both; without a name nothing goes to disk."""

    def __init__(self, encode: Callable[[list[str]], Any], space: str | None, count: Callable[[], float]) -> None:
        self._encode, self._count, self._space = encode, count, space
        self._parts: list[Matrix | Path] = []
        """What was computed here, or the file where it lies."""
        self._costs: list[NDArray[np.float64]] = []
        """For each part [n, 2]: tokens (nan: not known) and seconds of each text."""
        self._where: dict[bytes, tuple[int, int]] = {}
        self.dim: int | None = None
        for file in sorted(vectors_root().glob(f"{space}-*.npy")) if space else ():
            self._open(file)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Those that have no vector yet."""
        return [text for text in dict.fromkeys(texts) if text_key(text) not in self._where]

    def fill(self, texts: Sequence[str], progress: Callable[[int], object] = lambda _: None) -> None:
        """Encode those that have no vector yet; progress is told of every text."""
        absent = self.missing(texts)
        progress(len(texts) - len(absent))
        for chunk in _chunks(absent):
            tokens, started = self._count(), time.perf_counter()
            matrix = self._checked(self._encode(chunk), len(chunk))
            seconds = time.perf_counter() - started
            share = np.array([max(1, len(text)) for text in chunk], np.float64)
            costs = np.outer(share / share.sum(), (self._count() - tokens, seconds))
            self._keep([text_key(text) for text in chunk], matrix, costs)
            progress(len(chunk))

    def read(self, texts: Sequence[str]) -> Matrix:
        """[n, dim], a row for each text."""
        places = self._places(texts)
        numbers = np.unique(places[:, 0])
        parts = {number: _vectors(self._parts[number]) for number in numbers}
        if any(is_sparse(part) for part in parts.values()):
            starts = dict(zip(parts, np.cumsum([0, *(part.shape[0] for part in parts.values())]), strict=False))
            rows = [starts[number] + row for number, row in places]
            return sparse.vstack(list(parts.values()), format="csr")[rows]
        result = np.empty((len(texts), self.dim or 0), np.float32)
        for number, part in parts.items():
            here = np.flatnonzero(places[:, 0] == number)
            result[here] = part[places[here, 1]]
        return result

    def cost(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[2] tokens and seconds that the vectors of those texts took that are there."""
        known = [text for text in texts if text_key(text) in self._where]
        if not known:
            return np.zeros(2)
        starts = np.cumsum([0, *(len(costs) for costs in self._costs)])
        places = self._places(known)
        return np.asarray(np.concatenate(self._costs)[starts[places[:, 0]] + places[:, 1]].sum(axis=0))

    def _places(self, texts: Sequence[str]) -> NDArray[np.intp]:
        return np.array([self._where[text_key(text)] for text in texts], np.intp).reshape(len(texts), 2)

    def _checked(self, found: Any, count: int) -> Matrix:
        """The vectors, if they are what they must be."""
        matrix = found.tocsr() if is_sparse(found) else as_array(found).astype(np.float32, copy=False)
        if matrix.ndim != 2 or matrix.shape[0] != count:
            raise InputError(
                f"The encoder gave an array of shape {matrix.shape} for {count} texts; [{count}, dim] is needed."
            )
        values = matrix.data if is_sparse(matrix) else matrix
        if not np.isfinite(values).all():
            bad = count if is_sparse(matrix) else int((~np.isfinite(matrix).all(axis=1)).sum())
            raise EncoderError(
                f"The encoder gave vectors that are not finite for {bad} of {count} texts; "
                "run `d2v doctor` on its model."
            )
        self.dim = self.dim or matrix.shape[1]
        if matrix.shape[1] != self.dim:
            raise InputError(
                f"The encoder gave vectors of {matrix.shape[1]} dimensions after some of {self.dim}; they must agree."
            )
        return matrix

    def _keep(self, keys: list[bytes], matrix: Matrix, costs: NDArray[np.float64]) -> None:
        if self._space and not is_sparse(matrix):
            try:
                file = vectors_root() / f"{self._space}-{uuid.uuid4().hex}.npy"
                with atomic_file(file) as temporary, temporary.open("wb") as handle:
                    np.save(handle, _records(keys, matrix, costs))
                self._open(file)
                return
            except OSError as error:
                self._space = None
                log.warning("Cannot write vectors to %s (%s); going on without the cache.", vectors_root(), error)
        self._take(keys, matrix, costs)

    def _open(self, file: Path) -> None:
        try:
            records = np.load(file, mmap_mode="r", allow_pickle=False)
            vectors = records["vector"]
            self.dim = self.dim or vectors.shape[1]
            if vectors.shape[1] != self.dim:
                raise ValueError(f"{vectors.shape[1]} dimensions instead of {self.dim}")
            keys = [key.tobytes() for key in records["key"]]
            self._take(keys, file, np.stack([records["tokens"], records["seconds"]], axis=1).astype(np.float64))
        except (OSError, ValueError, IndexError, EOFError) as error:
            log.warning("%s is damaged (%s); its texts will be encoded again", file, error)

    def _take(self, keys: list[bytes], part: Matrix | Path, costs: NDArray[np.float64]) -> None:
        number = len(self._parts)
        self._parts.append(part)
        self._costs.append(costs)
        for row, key in enumerate(keys):
            self._where.setdefault(key, (number, row))


def token_count(encoder: object) -> Callable[[], float]:
    """How many tokens an encoder has read so far, if it counts them."""
    stats = getattr(encoder, "stats", None)
    return (lambda: float(encoder.stats.tokens)) if hasattr(stats, "tokens") else lambda: math.nan  # type: ignore[attr-defined]


def _vectors(part: Matrix | Path) -> Matrix:
    """The vectors of a part; a file is open for no longer than they are used, for there may be many."""
    return np.load(part, mmap_mode="r", allow_pickle=False)["vector"] if isinstance(part, Path) else part


def _records(keys: list[bytes], matrix: NDArray[np.float32], costs: NDArray[np.float64]) -> NDArray[Any]:
    fields = [("key", "V16"), ("tokens", "<f4"), ("seconds", "<f4"), ("vector", "<f4", (matrix.shape[1],))]
    records = np.empty(len(keys), np.dtype(fields))
    records["key"] = np.frombuffer(b"".join(keys), "V16")
    records["tokens"], records["seconds"], records["vector"] = costs[:, 0], costs[:, 1], matrix
    return records


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if characters >= _CHARACTERS or len(chunk) >= _TEXTS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
