"""A file of vectors as an encoder: each text has the vector that the file gives it, and no other text has one."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

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
        if not _is_table(self._vectors):
            raise DataFileError(f"{self.file} does not hold a table of numbers, one row for each text.")
        if len(keys) != len(self._vectors):
            raise DataFileError(
                f"{self.file} has {len(self._vectors)} vectors, {text_file or 'and'} {len(keys)} texts."
            )
        _check_finite(self._vectors, self.file)
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
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataFileError(f"Cannot read {file}: {_reason(error)}.") from None
    return _keys(read_texts(text_file), text_file), vectors


def _read_npz(file: Path) -> tuple[Keys, NDArray[Any]]:
    try:
        with file.open("rb") as handle:
            arrays = np.load(handle, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is an .npy file")
            texts, vectors = arrays[_TEXT], arrays[_VECTOR]
    except (OSError, KeyError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataFileError(f"Cannot read the arrays {_TEXT} and {_VECTOR} of {file}: {_reason(error)}.") from None
    if texts.ndim != 1 or texts.dtype.kind != "U":
        raise DataFileError(f"The array {_TEXT} of {file} is not a list of texts.")
    return _keys(texts.tolist(), file), vectors


def _read_jsonl(file: Path) -> tuple[Keys, NDArray[Any]]:
    def batches() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        texts: list[str] = []
        vectors: list[NDArray[np.float32]] = []
        dim = 0
        for line, row in read_rows(file, "jsonl"):
            text, vector = row.get(_TEXT), _to_vector(row.get(_VECTOR))
            if not isinstance(text, str) or vector is None:
                raise DataFileError(
                    f"{file}, line {line}: give {_TEXT} (a text) and {_VECTOR} (a list of finite numbers)."
                )
            dim = dim or len(vector)
            _check_length(len(vector), dim, f"{file}, line {line}")
            texts.append(text)
            vectors.append(vector)
            if len(texts) == _ROWS_AT_ONCE:
                yield texts, np.stack(vectors)
                texts, vectors = [], []
        if texts:
            yield texts, np.stack(vectors)

    return _spool(batches(), file)


def _to_vector(value: Any) -> NDArray[np.float32] | None:
    """The numbers of a list; None if it is anything else, or one of them is not finite."""
    try:
        numbers = np.array(value)
    except ValueError:  # ragged
        return None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":  # not texts, booleans or None
        return None
    with np.errstate(over="ignore"):
        vector = numbers.astype(np.float32)
    return vector if np.isfinite(vector).all() else None


def _read_parquet(file: Path) -> tuple[Keys, NDArray[Any]]:
    def batches() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        first_row, dim = 1, 0
        for texts, lengths, numbers in _parquet_batches(file):
            dim = dim or int(lengths[0])
            for index, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True), first_row):
                _check_length(length, dim, f"{file}, row {index}")
                if not isinstance(text, str):
                    raise DataFileError(f"{file}, row {index}: there is no text.")
            first_row += len(texts)
            yield texts, numbers.reshape(len(texts), dim)

    return _spool(batches(), file)


def _parquet_batches(file: Path) -> Iterator[tuple[list[Any], NDArray[Any], NDArray[np.float32]]]:
    """The texts of some rows, the lengths of their vectors, and the numbers of all these vectors in one array."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[_TEXT, _VECTOR]):
                vectors = batch.column(_VECTOR)
                lengths = pyarrow.compute.list_value_length(vectors).fill_null(0).to_numpy()
                numbers = vectors.flatten().cast(pyarrow.float32(), safe=False).to_numpy(zero_copy_only=False)
                yield batch.column(_TEXT).to_pylist(), lengths, numbers
    except (OSError, KeyError, ValueError, pyarrow.ArrowException) as error:
        raise DataFileError(
            f"{file} needs a column {_TEXT} and a column {_VECTOR} of lists: {_reason(error)}."
        ) from None


def _is_table(vectors: Any) -> bool:
    """Whether that is an array of numbers with rows and columns; `np.load` may give anything else."""
    return isinstance(vectors, np.ndarray) and vectors.ndim == 2 and vectors.dtype.kind in "fiu" and vectors.size > 0


def _check_finite(vectors: NDArray[Any], file: Path) -> None:
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        finite = np.isfinite(vectors[start : start + _ROWS_AT_ONCE]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite)) + 1
            raise DataFileError(f"{file}, row {row}: the vector has numbers that are missing, NaN or infinite.")


def _check_length(length: int, dim: int, where: str) -> None:
    if not length:
        raise DataFileError(f"{where}: there is no vector.")
    if length != dim:
        raise DataFileError(f"{where}: the vector has {length} dimension(s), that of the first row {dim}.")


def _reason(error: Exception) -> str:
    """The message of an exception as a part of a sentence."""
    return str(error).strip("'.")


def _keys(texts: Iterable[str], file: Path) -> Keys:
    try:
        return text_keys(texts)
    except UnicodeEncodeError as error:
        raise DataFileError(f"{file} has a text with half of a surrogate pair: {error.object[:80]!r}.") from None


def _spool(batches: Iterator[tuple[list[str], NDArray[np.float32]]], file: Path) -> tuple[Keys, NDArray[Any]]:
    """Keys, and the vectors in a temporary file that is deleted with the array: they may not fit into memory."""
    keys, dim = [], 0
    with tempfile.TemporaryFile() as spool:
        for texts, vectors in batches:
            keys.append(_keys(texts, file))
            dim = vectors.shape[1]
            spool.write(np.ascontiguousarray(vectors).data)
        if not keys:
            raise DataFileError(f"{file} holds no vectors.")
        spool.flush()
        return np.concatenate(keys), np.memmap(spool, np.float32, "r").reshape(-1, dim)


_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".jsonl": _read_jsonl, ".jsonl.gz": _read_jsonl}
