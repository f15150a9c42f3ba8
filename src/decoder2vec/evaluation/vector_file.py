"""A file of vectors as an encoder: each text has the vector that the file gives it, and no other text has one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.store import KeyIndex, Keys, text_keys
from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.config import fingerprint
from decoder2vec.errors import DataFileError, InputError, MissingExtraError
from decoder2vec.evaluation.text_encoder import FloatArray, TextEncoder
from decoder2vec.text.files import read_rows, read_texts

SUFFIXES = (".npy", ".npz", ".parquet", ".jsonl", ".jsonl.gz")
"""Endings of the names of such files."""

_TEXT_FILES = (".txt", ".tsv", ".csv", ".jsonl")
_TEXT, _VECTOR = "text", "embedding"
"""Columns, as `d2v embed` writes them."""
_ROWS_AT_ONCE = 8192


class VectorFile(TextEncoder):
    """Vectors that were computed elsewhere. They stay on disk; only the index of the texts is in memory.

    Args:
        file: .npy with the texts in a file of the same name (vectors.npy and vectors.txt, .tsv, .csv or .jsonl, also
            gzipped) in the same order; or .npz, .parquet or .jsonl with the columns text and embedding.

    Raises:
        DataFileError: The file is missing or malformed, or has not one vector for each text.
    """

    kind = "vectors"

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file).expanduser()
        if not self.file.is_file():
            raise DataFileError(f"There is no file {self.file}.")
        text_file = _text_file(self.file) if self.file.suffix == ".npy" else None
        keys, self._vectors = _read_npy(self.file, text_file) if text_file else _READERS[_suffix(self.file)](self.file)
        if self._vectors.ndim != 2 or self._vectors.dtype.kind not in "fiu":
            raise DataFileError(f"{self.file} does not hold a table of numbers, one row for each text.")
        if len(keys) != len(self._vectors):
            raise DataFileError(
                f"{self.file} has {len(self._vectors)} vectors, {text_file or 'and'} {len(keys)} texts."
            )
        self._index = KeyIndex(keys)
        self.dim = int(self._vectors.shape[1])
        self.fingerprint = fingerprint("vectors", *(file_sha256(path) for path in (self.file, text_file) if path))

    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] vectors of texts that the file has."""
        rows = self._index.find(text_keys(texts))
        absent = np.flatnonzero(rows < 0)
        if len(absent):
            example = texts[absent[0]][:80]
            raise InputError(f"{self.file} has no vector for {len(absent)} of {len(texts)} texts, such as {example!r}.")
        return np.asarray(self._vectors[rows], np.float32)

    def __repr__(self) -> str:
        return f"vectors of {self.file.name} ({self.dim} dimensions)"


def is_vector_file(name: str) -> bool:
    """Whether that is the name of a file of vectors."""
    return name.endswith(SUFFIXES)


def _suffix(file: Path) -> str:
    return next(suffix for suffix in SUFFIXES if file.name.endswith(suffix))


def _text_file(file: Path) -> Path:
    candidates = [file.with_name(file.stem + ending + gz) for ending in _TEXT_FILES for gz in ("", ".gz")]
    text_file = next((path for path in candidates if path.is_file()), None)
    if text_file is None:
        raise DataFileError(f"{file} needs its texts in the same order in {file.stem}.txt, .tsv, .csv or .jsonl.")
    return text_file


def _read_npy(file: Path, text_file: Path) -> tuple[Keys, NDArray[Any]]:
    return text_keys(read_texts(text_file)), _load(file)


def _read_npz(file: Path) -> tuple[Keys, NDArray[Any]]:
    arrays = _load(file)
    try:
        return text_keys(map(str, arrays[_TEXT])), np.asarray(arrays[_VECTOR])
    except (KeyError, ValueError) as error:
        raise DataFileError(f"{file} needs the arrays {_TEXT} and {_VECTOR}: {error}.") from None


def _load(file: Path) -> Any:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataFileError(f"Cannot read {file}: {error}.") from None


def _read_jsonl(file: Path) -> tuple[Keys, NDArray[Any]]:
    def batches() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        texts: list[str] = []
        vectors: list[Any] = []
        for line, row in read_rows(file, "jsonl"):
            if not isinstance(row.get(_TEXT), str) or not isinstance(row.get(_VECTOR), list):
                raise DataFileError(f"{file}, line {line}: give {_TEXT} (a text) and {_VECTOR} (a list of numbers).")
            texts.append(row[_TEXT])
            vectors.append(row[_VECTOR])
            if len(texts) == _ROWS_AT_ONCE:
                yield texts, _as_table(vectors, file)
                texts, vectors = [], []
        if texts:
            yield texts, _as_table(vectors, file)

    return _spool(batches(), file)


def _read_parquet(file: Path) -> tuple[Keys, NDArray[Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None

    def batches() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[_TEXT, _VECTOR]):
                    texts, vectors = batch.column(_TEXT).to_pylist(), batch.column(_VECTOR)
                    yield texts, vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(texts), -1)
        except (OSError, KeyError, AttributeError, ValueError) as error:  # pyarrow's own errors are among these
            raise DataFileError(f"{file} needs a column {_TEXT} and a column {_VECTOR} of lists: {error}") from None

    return _spool(batches(), file)


def _as_table(vectors: list[Any], file: Path) -> NDArray[np.float32]:
    try:
        return np.array(vectors, np.float32)
    except (TypeError, ValueError):
        raise DataFileError(f"The vectors of {file} are not lists of numbers of the same length.") from None


def _spool(batches: Iterator[tuple[list[str], NDArray[np.float32]]], file: Path) -> tuple[Keys, NDArray[Any]]:
    """Keys, and the vectors in a temporary file that is deleted with the array: they may not fit into memory."""
    keys, dims = [], set()
    with tempfile.TemporaryFile() as spool:
        for texts, vectors in batches:
            keys.append(text_keys(texts))
            dims.add(vectors.shape[1])
            spool.write(np.ascontiguousarray(vectors, np.float32).data)
        if len(dims) != 1:
            raise DataFileError(f"{file} has vectors of {len(dims)} different lengths; all must have the same.")
        spool.flush()
        return np.concatenate(keys), np.memmap(spool, np.float32, "r").reshape(-1, dims.pop())


_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".jsonl": _read_jsonl, ".jsonl.gz": _read_jsonl}
