"""Vectors with captions: read from .npy or Parquet files, checked, and split into parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bulk.files import import_pyarrow
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import read_rows, read_texts
from decoder2vec.text.tables import format_of

Vectors = NDArray[np.float32]
"""[items, dim] vectors."""

VECTOR_COLUMN = "embedding"
CAPTION_COLUMNS = ("caption", "text", "sentence")
"""Columns that may hold captions; the first that a file has is used."""
_CAPTION_FILES = (".txt", ".tsv", ".csv", ".jsonl")
_MIN_ITEMS = 8
"""Fewer items cannot be split into train, dev and test."""


@dataclass(frozen=True)
class CaptionedVectors:
    """Vectors of items, each with a caption.

    Raises:
        InputError: There are not as many captions as vectors, a caption is blank, or a vector cannot be used.
    """

    vectors: Vectors
    captions: Sequence[str]
    name: str = "the data"
    """Where they are from, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", check_vectors(self.vectors, self.name))
        if len(self.vectors) > 1 and not np.ptp(self.vectors, axis=0).any():
            raise InputError(
                f"{self.name}: all {len(self.vectors)} vectors are equal, so nothing can be learned from them."
            )
        if len(self.vectors) != len(self.captions):
            raise InputError(
                f"{self.name} has {len(self.vectors)} vectors and {len(self.captions)} captions; give one caption for "
                "each vector, in the same order."
            )
        for row, caption in enumerate(self.captions, 1):
            if not isinstance(caption, str) or not caption.strip():
                raise InputError(f"{self.name}, row {row}: the caption is empty; leave the item out or describe it.")

    def __len__(self) -> int:
        return len(self.captions)

    def select(self, rows: NDArray[np.intp]) -> CaptionedVectors:
        """The items of these rows."""
        return CaptionedVectors(self.vectors[rows], [self.captions[row] for row in rows], self.name)

    def split(self, seed: int = 0) -> tuple[CaptionedVectors, CaptionedVectors, CaptionedVectors]:
        """Train, dev and test: a tenth each for dev (at most 500) and test (at most 1,000).

        Items with the same caption are in the same part, so that no caption of test was learned.

        Raises:
            InputError: There are too few different captions.
        """
        groups: dict[str, list[int]] = {}
        for row, caption in enumerate(self.captions):
            groups.setdefault(" ".join(caption.lower().split()), []).append(row)
        if len(groups) < _MIN_ITEMS:
            raise InputError(
                f"{self.name} has {len(groups)} different captions; give {_MIN_ITEMS} or more to train and to measure."
            )
        order = np.random.default_rng(seed).permutation(len(groups))
        rows = list(groups.values())
        sizes = [min(most, max(2, len(self) // 10)) for most in (1000, 500)]
        parts: list[list[int]] = [[], [], []]
        for group in order:
            part = next((index for index, size in enumerate(sizes) if len(parts[index]) < size), 2)
            parts[part] += rows[group]
        test, dev, train = (self.select(np.array(sorted(part), np.intp)) for part in parts)
        return train, dev, test

    def digest(self) -> str:
        """Hash of vectors and captions."""
        sha256 = hashlib.sha256(repr(self.vectors.shape).encode() + self.vectors.tobytes())
        sha256.update(json.dumps(list(self.captions)).encode())
        return sha256.hexdigest()[:16]


def check_vectors(vectors: Any, name: str = "the data", *, dim: int | None = None) -> Vectors:
    """Return vectors as [items, dim] float32; raise a sentence if they cannot be used.

    Args:
        vectors: The vectors.
        name: Where they are from, for messages.
        dim: The dimension that they must have; by default any.

    Raises:
        InputError: They are no table of finite numbers, one of them is constant, or their dimension is another.
    """
    table = to_table_of_numbers(vectors, name, dim=dim)
    constant = np.ptp(table, axis=1) == 0
    if table.shape[1] > 1 and constant.any():
        row = int(np.argmax(constant)) + 1
        raise InputError(
            f"{name}, row {row}: all numbers of the vector are {table[row - 1, 0]:g}, so it says nothing; leave it out."
        )
    return table


def to_table_of_numbers(vectors: Any, name: str, *, dim: int | None = None) -> Vectors:
    """Like `check_vectors`, but a vector may be constant."""
    try:
        table = np.asarray(vectors)
        with np.errstate(over="ignore"):
            table = table.astype(np.float32) if table.dtype.kind in "fiu" else table
    except (ValueError, TypeError, RuntimeError):
        table = np.empty(0)
    if table.ndim != 2 or table.dtype != np.float32 or not table.size:
        raise InputError(f"{name} does not hold a table of numbers, one row for each item.")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite)) + 1
        raise InputError(f"{name}, row {row}: the vector has numbers that are missing, NaN or infinite; leave it out.")
    if dim is not None and table.shape[1] != dim:
        raise InputError(f"{name} has vectors of {table.shape[1]} dimensions; this bridge takes those of {dim}.")
    return np.ascontiguousarray(table)


def read_vectors(file: str | Path, vector_column: str = VECTOR_COLUMN) -> Vectors:
    """Read the vectors of a .npy or Parquet file.

    Args:
        file: The file.
        vector_column: Column of a Parquet file with lists of numbers.

    Raises:
        DataFileError: The file cannot be read.
    """
    path = _existing(file)
    if path.suffix == ".parquet":
        return _parquet_vectors(path, vector_column)
    if path.suffix != ".npy":
        raise DataFileError(f"{path} is no file of vectors; give .npy or .parquet.")
    try:
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
    except OSError as error:
        raise DataFileError(f"Cannot read {path}: {str(error).strip('.')}.") from None
    except (ValueError, EOFError):  # numpy takes what it does not know for a pickle, and advises to load it
        raise DataFileError(f"Cannot read {path}: it is not a whole .npy file of numbers.") from None


def read_captioned_vectors(
    file: str | Path, captions: str | Path | None = None, column: str | None = None, vector_column: str = VECTOR_COLUMN
) -> CaptionedVectors:
    """Read vectors and their captions.

    Args:
        file: .npy or .parquet with the vectors.
        captions: .txt, .tsv, .csv or .jsonl with the captions, in the same order, also gzipped; by default the Parquet
            file itself, or a file of the same name as the .npy file.
        column: Column of the captions; by default caption, text or sentence.
        vector_column: Column of the vectors in a Parquet file.

    Raises:
        DataFileError: A file cannot be read.
        InputError: Vectors or captions cannot be used.
    """
    path = _existing(file)
    vectors = read_vectors(path, vector_column)
    if captions is None and path.suffix == ".parquet":
        return CaptionedVectors(vectors, _parquet_captions(path, column), str(path))
    source = Path(captions) if captions is not None else find_captions(path)
    if source is None:
        raise DataFileError(f"{path} needs captions, in the same order, in {path.stem}.txt or in a file that you name.")
    return CaptionedVectors(vectors, read_captions(source, column), f"{path} with {source}")


def read_item_texts(
    file: str | Path, captions: str | Path | None = None, column: str | None = None
) -> list[str] | None:
    """Read the captions that belong to a file of vectors; None if there are none and none were named.

    Args:
        file: The file of vectors.
        captions: The file of captions, as in `read_captioned_vectors`.
        column: Their column.
    """
    path = _existing(file)
    if captions is None and path.suffix == ".parquet":
        names = set(_parquet_columns(path))
        return _parquet_captions(path, column) if column or names & set(CAPTION_COLUMNS) else None
    source = captions or find_captions(path)
    return read_captions(source, column) if source else None


def find_captions(file: Path) -> Path | None:
    """The file of captions beside a file of vectors, if there is one; a Parquet file may hold its own."""
    candidates = [file.with_name(file.stem + ending + gz) for ending in _CAPTION_FILES for gz in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def read_captions(file: str | Path, column: str | None = None) -> list[str]:
    """Read the captions of a .txt, .tsv, .csv or .jsonl file, also gzipped."""
    path = _existing(file, f"captions, {', '.join(_CAPTION_FILES[:-1])} or {_CAPTION_FILES[-1]}")
    if column is None and format_of(path) != "txt":
        columns = [name for _, row in islice(read_rows(path), 1) for name in row]
        column = next((name for name in CAPTION_COLUMNS if name in columns), None)
    return list(read_texts(path, column))


def _existing(file: str | Path, wanted: str = "vectors, .npy or .parquet") -> Path:
    path = Path(file).expanduser()
    if path.is_dir():
        raise DataFileError(f"{path} is a folder; give a file of {wanted}.")
    if not path.is_file():
        raise DataFileError(f"There is no file {path}.")
    return path


def _parquet_vectors(path: Path, column: str) -> Vectors:
    _, parquet = import_pyarrow()
    import pyarrow.compute

    try:
        with parquet.ParquetFile(path) as file:
            table = file.read([column]).column(column).combine_chunks()
        lengths = np.unique(pyarrow.compute.list_value_length(table).fill_null(0).to_numpy())
        if len(lengths) > 1:
            raise ValueError(f"there are vectors of {lengths[0]} and of {lengths[-1]} dimensions")
        numbers = table.flatten().cast(pyarrow.float32(), safe=False).to_numpy(zero_copy_only=False)
    except (OSError, KeyError, ValueError, pyarrow.ArrowException) as error:
        raise DataFileError(
            f"{path} needs a column {column} of lists of numbers, all equally long: {str(error).strip('.')}."
        ) from None
    return np.asarray(numbers).reshape(len(table), -1) if len(table) else np.empty((0, 0), np.float32)


def _parquet_captions(path: Path, column: str | None) -> list[str]:
    pyarrow, parquet = import_pyarrow()
    names = _parquet_columns(path)
    chosen = column or next((name for name in CAPTION_COLUMNS if name in names), None)
    if chosen not in names:
        wanted = column or " or ".join(CAPTION_COLUMNS)
        raise DataFileError(f"{path} has no column {wanted}; it has {', '.join(names)}.")
    try:
        with parquet.ParquetFile(path) as file:
            return file.read([chosen]).column(chosen).to_pylist()  # type: ignore[no-any-return]
    except (OSError, pyarrow.ArrowException) as error:
        raise DataFileError(f"Cannot read {path}: {str(error).strip('.')}.") from None


def _parquet_columns(path: Path) -> list[str]:
    pyarrow, parquet = import_pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataFileError(f"Cannot read {path}: {str(error).strip('.')}.") from None
