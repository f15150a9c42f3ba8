"""Files with rows of texts: found by path, folder, pattern or URL, counted, and read by ranges of rows."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.errors import DataFileError, Decoder2VecError, InputError, MissingExtraError, StorageError
from decoder2vec.text.files import text_problem
from decoder2vec.text.tables import RowOrError, doubled_name, format_of, parse_rows

_SUFFIXES = (".parquet", ".lance", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt")
_GZIPPED = tuple(f"{suffix}.gz" for suffix in _SUFFIXES[2:])

Problems = dict[int, str]
"""Why a row has no fields, by its index in a table."""


@dataclass(frozen=True)
class RowFile:
    """A file of rows.

    Args:
        path: Where it is: an absolute path or a URL.
        n_rows: Its rows, malformed ones included.
        version: Identifies its content: the SHA-256 of a local file, what the store says of a remote one.
    """

    path: str
    n_rows: int
    version: str

    @property
    def has_types(self) -> bool:
        """Whether the columns have types of their own."""
        return self.path.endswith((".parquet", ".lance"))


def find_files(sources: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the paths of all files that are meant, in a fixed order.

    Args:
        sources: One or several files, folders, patterns such as `data/*.jsonl.gz`, and URLs of all of these.

    Raises:
        InputError: One of them names no file.
    """
    paths: list[str] = []
    for source in map(str, [sources] if isinstance(sources, str | Path) else sources):
        system, path = open_filesystem(source)
        try:
            if any(character in path for character in "*?[") and not system.exists(path):
                names = [name for name in system.glob(path) if name.endswith(".lance") or not system.isdir(name)]
            elif system.isdir(path) and not path.endswith(".lance"):
                names = sorted({_lance_table(name) for name in system.find(path)})
                names = [name for name in names if name.endswith(_SUFFIXES + _GZIPPED)]
            else:
                names = [path] if system.exists(path) else []
        except Exception as error:  # every store has errors of its own
            raise InputError(f"Cannot read {source}: {error_reason(error)}.") from None
        if not names:
            raise InputError(f"{source} names no file; give {', '.join(_SUFFIXES)} files, the text ones also as .gz.")
        paths += [name if is_local(system) else system.unstrip_protocol(name) for name in sorted(names)]
    return list(dict.fromkeys(paths))


def _lance_table(path: str) -> str:
    """The folder of the table that a file belongs to; any other file as it is."""
    table, ending, _ = path.partition(".lance/")
    return f"{table}.lance" if ending else path


def error_reason(error: Exception) -> str:
    """What an error of a store says, as a part of a sentence."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split()).rstrip(".")[:200]


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Raise errors of a remote store, of whatever class, as StorageError."""
    try:
        yield
    except (Decoder2VecError, FileNotFoundError):
        raise
    except Exception as error:
        raise StorageError(f"Cannot use {url}: {error_reason(error)}.") from error


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises:
        InputError: The protocol is unknown, or needs a package that is not installed.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(f"Cannot open {url}: {str(error).rstrip('.')}.") from None
    return system, str(path)


def inspect_file(path: str) -> tuple[RowFile, dict[str, str]]:
    """Count the rows of a file, and find the type of each column."""
    version = file_version(path)
    if path.endswith(".parquet"):
        with _open_parquet(path) as file:
            columns = {field.name: str(field.type) for field in file.schema_arrow}
            if doubled := doubled_name(file.schema_arrow.names):
                raise DataFileError(f"{path} has two columns {doubled!r}; rename or remove one.")
            return RowFile(path, file.metadata.num_rows, version), columns
    if path.endswith(".lance"):
        table = open_lance(path)
        return RowFile(path, table.count_rows(), version), {field.name: str(field.type) for field in table.schema}
    n_rows, kinds = 0, dict[str, str]()
    with _local_copy(path) as local:
        for _, row in _parse(path, local):
            n_rows += 1
            if not isinstance(row, str):
                for name, value in row.items():
                    kinds[name] = _common_kind(kinds.get(name, "null"), _kind(value))
    columns = {str(name): "string" if kind == "null" else kind for name, kind in kinds.items()}
    return RowFile(path, n_rows, version), columns


def file_version(path: str) -> str:
    """Identify the content of a file: by its SHA-256, or by what the store says of a remote one."""
    system, inner = open_filesystem(path)
    if path.endswith(".lance"):
        return _lance_version(path)
    if is_local(system):
        return file_sha256(Path(inner), cache_result=False)
    about = {name.lower(): value for name, value in system.info(inner).items()}
    # other fields may depend on how the store was asked
    tag = next((str(about[name]) for name in ("etag", "md5hash", "sha256", "oid") if about.get(name)), None)
    return tag or str(system.ukey(inner))


class RowReader:
    """Reads ranges of rows of one file; ranges that follow one another are read in one pass.

    Args:
        file: The file.
        columns: The type of each column, of which a file may lack some.
        text_column: The column that must hold a text.
    """

    def __init__(self, file: RowFile, columns: Mapping[str, str], text_column: str) -> None:
        self.file, self._columns, self._text_column = file, columns, text_column
        self._rows: Iterator[RowOrError] | None = None
        self._next_row = 0
        self._row_group: tuple[int, Any] = (-1, None)
        self._lance: Any = None

    def read(self, start: int, stop: int) -> tuple[Any, Problems]:
        """Return the rows as an Arrow table, and why some of them cannot be read or have no text."""
        if self.file.has_types:
            is_lance = self.file.path.endswith(".lance")
            table = self._read_lance(start, stop) if is_lance else self._read_parquet(start, stop)
            texts = table[self._text_column].to_pylist()
            return table, {i: f"{self._text_column} is missing." for i, text in enumerate(texts) if text is None}
        if self._rows is None or self._next_row > start:
            self._rows, self._next_row = self._open_rows(), 0
        rows = list(islice(self._rows, start - self._next_row, stop - self._next_row))
        self._next_row = stop
        if len(rows) != stop - start:
            raise DataFileError(f"{self.file.path} has fewer rows than when it was counted; give an unchanged file.")
        problems, readable = Problems(), list[dict[str, Any]]()
        for index, (line, row) in enumerate(rows):
            if problem := row if isinstance(row, str) else self._problem(row):
                problems[index] = f"line {line}: {problem}"
            readable.append({} if isinstance(row, str) or _half_pair(row) else row)
        return _to_table(readable, self._columns), problems

    def _problem(self, row: dict[str, Any]) -> str:
        """Why a row cannot be embedded; empty if it can."""
        if half := _half_pair(row):
            return text_problem(half, row[half])
        return text_problem(self._text_column, row.get(self._text_column))

    def _open_rows(self) -> Iterator[RowOrError]:
        with _local_copy(self.file.path) as local:
            yield from _parse(self.file.path, local)

    def _read_lance(self, start: int, stop: int) -> Any:
        if self._lance is None:
            self._lance = open_lance(self.file.path)
            if _lance_version(self.file.path) != self.file.version:
                raise DataFileError(f"{self.file.path} has changed since it was counted; run again.")
        rows = self._lance.search().select(list(self._columns)).offset(start).limit(stop - start).to_arrow()
        return rows.replace_schema_metadata(None)

    def _read_parquet(self, start: int, stop: int) -> Any:
        import pyarrow

        slices, first = [], 0
        with _open_parquet(self.file.path) as file:
            for group in range(file.metadata.num_row_groups):
                n_rows = file.metadata.row_group(group).num_rows
                low, high = max(start, first), min(stop, first + n_rows)
                if low < high:
                    if self._row_group[0] != group:
                        self._row_group = (group, file.read_row_group(group))
                    slices.append(self._row_group[1].slice(low - first, high - low))
                first += n_rows
        return pyarrow.concat_tables(slices)


def _half_pair(row: dict[str, Any]) -> str:
    """The column with half of a surrogate pair, which no file of Arrow can hold; empty if there is none."""
    return next((name for name, value in row.items() if isinstance(value, str) and text_problem(name, value)), "")


def import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet


def is_local(system: Any) -> bool:
    """Whether a file system of fsspec is that of this machine."""
    return "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))


def _parse(path: str, local: Path) -> Iterator[RowOrError]:
    try:
        yield from parse_rows(local, format_of(Path(path)))
    except DataFileError as error:
        raise DataFileError(str(error).replace(str(local), path)) from None


@contextmanager
def _local_copy(path: str) -> Iterator[Path]:
    """A remote text file as a local one, since such a file is read from its beginning anyway."""
    system, inner = open_filesystem(path)
    if is_local(system):
        yield Path(inner)
        return
    with tempfile.TemporaryDirectory(prefix="d2v-") as folder:
        local = Path(folder, inner.rsplit("/", 1)[-1])
        system.get_file(inner, str(local))
        yield local


def _open_parquet(path: str) -> Any:
    pyarrow, parquet = import_pyarrow()
    system, inner = open_filesystem(path)
    try:
        return parquet.ParquetFile(inner, filesystem=None if is_local(system) else system)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataFileError(f"{path} is damaged or not a Parquet file ({error}).") from None


def open_lance(path: str) -> Any:
    """Return the table of Lance at a path or URL.

    Raises:
        MissingExtraError: lancedb is not installed.
        DataFileError: It is none.
    """
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("lancedb", "index") from None
    folder, _, name = path.rpartition("/")
    try:
        return lancedb.connect(folder or ".").open_table(name.removesuffix(".lance"))
    except (OSError, RuntimeError, ValueError) as error:
        raise DataFileError(f"{path} is damaged or not a table of Lance ({error_reason(error)}).") from None


def _lance_version(path: str) -> str:
    """The SHA-256 of the list of files that a table consists of: they are never changed, only replaced."""
    system, inner = open_filesystem(path)
    version = open_lance(path).version
    for name in (2**64 - 1 - version, version):  # new tables count backwards
        if system.exists(file := f"{inner}/_versions/{name}.manifest"):
            return hashlib.sha256(system.cat_file(file)).hexdigest()
    raise DataFileError(f"{path} has no version {version}; the table of Lance is damaged.")


# --- types of columns without a schema ------------------------------------------------------------------------------

_PYTHON_TYPES = {"bool": bool, "int64": int, "double": float, "string": str}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def _common_kind(first: str, second: str) -> str:
    """The type that holds values of both."""
    if first == second or second == "null":
        return first
    if first == "null":
        return second
    return "double" if {first, second} == {"int64", "double"} else "string"


def common_columns(files: Sequence[tuple[RowFile, dict[str, str]]]) -> dict[str, str]:
    """Return the type of each column over all files.

    Raises:
        InputError: Parquet files, whose types are fixed, have other columns than the rest.
    """
    columns: dict[str, str] = {}
    for file, file_columns in files:
        if columns and (file.has_types or files[0][0].has_types) and file_columns != columns:
            different = min(set(file_columns.items()) ^ set(columns.items()))[0]
            raise InputError(
                f"{file.path} and {files[0][0].path} differ in the column {different!r}; embed them apart."
            )
        for name, kind in file_columns.items():
            columns[name] = kind if file.has_types else _common_kind(columns.get(name, "null"), kind)
    return columns


def same_rows(table: Any, other: Any) -> bool:
    """Whether two Arrow tables hold the same; to Arrow itself, a column with NaN does not equal its own copy."""
    return bool(table.schema.equals(other.schema)) and all(
        column.equals(expected) or repr(column.to_pylist()) == repr(expected.to_pylist())
        for column, expected in zip(table.columns, other.columns, strict=True)
    )


def _to_table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> Any:
    pyarrow, _ = import_pyarrow()
    arrays = {
        name: pyarrow.array([_convert(row.get(name), kind) for row in rows], pyarrow.type_for_alias(kind))
        for name, kind in columns.items()
    }
    return pyarrow.table(arrays)


def _convert(value: Any, kind: str) -> Any:
    """A value in the type of its column; what is no text in a column of texts is written as JSON."""
    if value is None or isinstance(value, _PYTHON_TYPES[kind]):
        return value
    return float(value) if kind == "double" else json.dumps(value, ensure_ascii=False)
