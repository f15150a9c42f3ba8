"""Cache of text vectors: each text is encoded once, and stored on disk if the encoder has a fingerprint.

The cost of every vector (tokens, seconds) is stored with it, so the cost of an evaluation is known even if it was
interrupted. Files are written atomically, so no lock is needed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from decoder2vec.activations.store import text_key
from decoder2vec.errors import EncoderError
from decoder2vec.evaluation.similarity import Matrix, is_sparse, to_numpy
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_file, vectors_root

log = logging.getLogger(__name__)

_CHUNK_CHARACTERS, _CHUNK_TEXTS = 1 << 16, 4096
"""Size of a chunk, which is what a kill can lose: at most a minute of work on a slow machine."""
_DIGEST_DIGITS = 64
"""Of the checksum in the name of a file; names of version 0.1 end in a random number of 32 digits."""


class VectorCache:
    """Vectors of texts, computed by one encode function and looked up by the hash of the text.

    Args:
        encode: Function of n texts that returns [n, dim] vectors, dense or sparse.
        space: Name of the embedding space and encoding mode, the prefix of the files on disk. None: memory only.
        count_tokens: Function that returns the number of tokens encoded so far, or nan if it is not known.
    """

    def __init__(
        self, encode: Callable[[list[str]], Any], space: str | None, count_tokens: Callable[[], float]
    ) -> None:
        self._encode, self._count_tokens, self._space = encode, count_tokens, space
        self._chunks: list[Matrix | Path] = []
        """Each a matrix in memory, or the file that holds it."""
        self._costs: list[NDArray[np.float64]] = []
        """For each chunk [n, 2]: tokens (nan: not known) and seconds of each text."""
        self._locations: dict[bytes, tuple[int, int]] = {}
        """Text key -> chunk and row."""
        self.dim: int | None = None
        for file in sorted(vectors_root().glob(f"{space}-*.npy")) if space else ():
            self._load_file(file)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The unique texts that have no vector yet."""
        return [text for text in dict.fromkeys(texts) if text_key(text) not in self._locations]

    def fill(self, texts: Sequence[str], on_progress: Callable[[int], object] = lambda _: None) -> None:
        """Encode the texts that have no vector yet. `on_progress` gets counts that add up to `len(texts)`."""
        missing = self.missing(texts)
        on_progress(len(texts) - len(missing))
        progress = current_progress()
        progress.remaining_work -= len(texts) - len(missing)
        for chunk in _split_into_chunks(missing):
            remaining = progress.remaining_work - len(chunk)
            tokens, started = self._count_tokens(), time.perf_counter()
            matrix = self._validate(self._encode(chunk), len(chunk))
            seconds = time.perf_counter() - started
            lengths = np.array([max(1, len(text)) for text in chunk], np.float64)
            costs = np.outer(lengths / lengths.sum(), (self._count_tokens() - tokens, seconds))
            self._store([text_key(text) for text in chunk], matrix, costs)
            on_progress(len(chunk))
            progress.advance(max(0.0, progress.remaining_work - remaining))  # an encoder may have reported it itself

    def read(self, texts: Sequence[str]) -> Matrix:
        """[texts, dim] vectors; every text must have been filled."""
        locations = self._locate(texts)
        matrices = {chunk: _read_chunk(self._chunks[chunk]) for chunk in np.unique(locations[:, 0])}
        if any(is_sparse(matrix) for matrix in matrices.values()):
            starts = np.cumsum([0, *(matrix.shape[0] for matrix in matrices.values())])
            start_of = dict(zip(matrices, starts, strict=False))
            rows = [start_of[chunk] + row for chunk, row in locations]
            return sparse.vstack(list(matrices.values()), format="csr")[rows]
        vectors = np.empty((len(texts), self.dim or 0), np.float32)
        for chunk, matrix in matrices.items():
            inside = np.flatnonzero(locations[:, 0] == chunk)
            vectors[inside] = matrix[locations[inside, 1]]
        return vectors

    def cost(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[2] tokens and seconds spent on the vectors of these texts; texts without a vector count nothing."""
        encoded = [text for text in texts if text_key(text) in self._locations]
        if not encoded:
            return np.zeros(2)
        starts = np.cumsum([0, *(len(costs) for costs in self._costs)])
        locations = self._locate(encoded)
        return np.asarray(np.concatenate(self._costs)[starts[locations[:, 0]] + locations[:, 1]].sum(axis=0))

    def _locate(self, texts: Sequence[str]) -> NDArray[np.intp]:
        """[texts, 2] chunk and row of every text."""
        return np.array([self._locations[text_key(text)] for text in texts], np.intp).reshape(len(texts), 2)

    def _validate(self, vectors: Any, count: int) -> Matrix:
        """The encoder's output as a [count, dim] matrix of finite values; anything else is refused."""
        matrix = vectors.tocsr() if is_sparse(vectors) else to_numpy(vectors).astype(np.float32, copy=False)
        if matrix.ndim != 2 or matrix.shape[0] != count:
            raise EncoderError(
                f"The encoder returned an array of shape {matrix.shape} for {count} texts; "
                f"its encode must return [{count}, dim]."
            )
        values = matrix.data if is_sparse(matrix) else matrix
        if not np.isfinite(values).all():
            bad = count if is_sparse(matrix) else int((~np.isfinite(matrix).all(axis=1)).sum())
            raise EncoderError(
                f"The encoder returned vectors that are not finite for {bad} of {count} texts; "
                "run `d2v doctor` on its model."
            )
        self.dim = self.dim or matrix.shape[1]
        if matrix.shape[1] != self.dim:
            raise EncoderError(
                f"The encoder returned vectors of {matrix.shape[1]} dimensions after vectors of {self.dim}; "
                "all vectors must have the same number of dimensions."
            )
        return matrix

    def _store(self, keys: list[bytes], matrix: Matrix, costs: NDArray[np.float64]) -> None:
        if self._space and not is_sparse(matrix):
            try:
                records = _records(keys, matrix, costs)
                file = vectors_root() / f"{self._space}-{_digest(records)}.npy"
                with atomic_file(file) as temporary, temporary.open("wb") as handle:
                    np.save(handle, records)
                self._load_file(file)
                return
            except OSError as error:
                self._space = None
                log.warning("Cannot write vectors to %s (%s); going on without the cache.", vectors_root(), error)
        self._add_chunk(keys, matrix, costs)

    def _load_file(self, file: Path) -> None:
        try:
            records = np.load(file, mmap_mode="r", allow_pickle=False)
            digest = file.stem.rpartition("-")[2]
            if len(digest) == _DIGEST_DIGITS and digest != _digest(records):
                raise ValueError("its checksum is another")
            vectors = records["vector"]
            self.dim = self.dim or vectors.shape[1]
            if vectors.shape[1] != self.dim:
                raise ValueError(f"{vectors.shape[1]} dimensions instead of {self.dim}")
            keys = [key.tobytes() for key in records["key"]]
            self._add_chunk(keys, file, np.stack([records["tokens"], records["seconds"]], axis=1).astype(np.float64))
        except (OSError, ValueError, IndexError, EOFError) as error:
            log.warning("%s is damaged (%s); its texts will be encoded again", file, error)

    def _add_chunk(self, keys: list[bytes], chunk: Matrix | Path, costs: NDArray[np.float64]) -> None:
        index = len(self._chunks)
        self._chunks.append(chunk)
        self._costs.append(costs)
        for row, key in enumerate(keys):
            self._locations.setdefault(key, (index, row))


def token_counter(encoder: object) -> Callable[[], float]:
    """A function that returns how many tokens the encoder has encoded so far, or nan if it does not count them."""
    stats = getattr(encoder, "stats", None)
    return (lambda: float(encoder.stats.tokens)) if hasattr(stats, "tokens") else lambda: math.nan  # type: ignore[attr-defined]


def _read_chunk(chunk: Matrix | Path) -> Matrix:
    """The vectors of a chunk. A file is opened only while it is used, since there may be many."""
    return np.load(chunk, mmap_mode="r", allow_pickle=False)["vector"] if isinstance(chunk, Path) else chunk


def _records(keys: list[bytes], matrix: NDArray[np.float32], costs: NDArray[np.float64]) -> NDArray[Any]:
    fields = [("key", "V16"), ("tokens", "<f4"), ("seconds", "<f4"), ("vector", "<f4", (matrix.shape[1],))]
    records = np.empty(len(keys), np.dtype(fields))
    records["key"] = np.frombuffer(b"".join(keys), "V16")
    records["tokens"], records["seconds"], records["vector"] = costs[:, 0], costs[:, 1], matrix
    return records


def _digest(records: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(records).view(np.uint8).data).hexdigest()


def _split_into_chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if characters >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_TEXTS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
