"""Documents to index, read from folders, files, strings and dicts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, InputError, MissingExtraError
from decoder2vec.progress import current_progress
from decoder2vec.search.file_formats import TABLE_SUFFIXES, TEXT_SUFFIXES, read_file_text, read_tables
from decoder2vec.storage import name_in_utf8, parse_json, real_path
from decoder2vec.text.tables import RowOrError

_ID_COLUMNS = ("id", "_id")
_MAX_ID_LENGTH = 1000
_SAMPLED_ROWS = 100
"""Rows by which the columns that hold text are chosen."""
_TITLE_COLUMNS = ("title", "name", "subject", "headline")
"""Columns that are text even if their values are single words."""
_MIN_WORDS = 2
"""Mean number of words of a column that holds text."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_NO_TEXT, _NO_ROW = "it holds no text", "it holds no row"


@dataclass(frozen=True)
class Document:
    """A text with an id and metadata. The id is only a name: nothing is opened by it, even if it looks like a path."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    vector: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """The vector of the text where it is known: the text is then one chunk, and is not encoded."""
    origin: str = ""
    """What the vector was computed from, if not from the text: a document with another origin has changed."""

    def digest(self) -> str:
        """Return a hash of text, metadata and origin."""
        parts = [self.text, self.metadata, *([self.origin] if self.origin else [])]
        content = json.dumps(parts, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Skipped:
    """A file, row or document that was left out, and the reason."""

    name: str
    reason: str
    path: str = ""
    """The file that could not be read completely, or the subfolder, with a slash at its end; empty if it is neither."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to index, rather than something that cannot be read."""
        return self.reason in (_NO_TEXT, _NO_ROW)


DocumentSource = str | Path | Iterable[Document | Skipped | str | Mapping[str, Any]]
"""A folder or file, or documents, texts and dicts."""

Notify = Callable[[str], object]


def to_documents(
    source: DocumentSource, columns: Sequence[str] = (), notify: Notify = lambda _: None
) -> Iterator[Document | Skipped]:
    """Yield the documents of anything that `Index.add` accepts.

    Args:
        source: A folder or file, read by `read_documents`; or an iterable of documents, texts and dicts. The id of a
            text is a hash of it. A dict is read like a row of a table; without an id it gets the hash of its text.
        columns: Columns of a table, or keys of a dict, that are joined to the text. By default `text`, or what
            `read_documents` chooses for a table without it.
        notify: Called with messages for the user.
    """
    if isinstance(source, str) and not os.path.exists(source):
        raise DataFileError(f"{source[:200]!r} does not exist; give a folder or file, or a list of texts.")
    if isinstance(source, str | Path):
        yield from read_documents(Path(source), columns, notify)
        return
    if isinstance(source, Document | Mapping):
        raise InputError("Expected a list of documents, not one document; put it into a list.")
    for number, item in enumerate(source, 1):
        if isinstance(item, Skipped):
            yield item
        elif isinstance(item, Document):
            yield _storable_document(item, number)
        elif isinstance(item, str):
            yield Document(_text_id(item), storable(item))
        elif isinstance(item, Mapping):
            yield row_document(item, columns or ("text",), name=f"document {number}")
        else:
            raise InputError(f"Document {number} is a {type(item).__name__}; give documents, texts or dicts.")


def read_documents(
    source: Path, columns: Sequence[str] = (), notify: Notify = lambda _: None
) -> Iterator[Document | Skipped]:
    """Yield every document of a file or of a folder and its subfolders, and `Skipped` for what cannot be read.

    A file of text (`TEXT_SUFFIXES`) is one document, with its path inside the folder as id. Every row of a table
    (`TABLE_SUFFIXES`) is a document: its id is the column `id` or `_id`, or file name and line. Hidden files are
    ignored, and links that lead out of the folder are not followed.

    Args:
        source: File or folder.
        columns: Columns of a row that are joined to its text; the other columns become its metadata. By default `text`;
            in a table without it, all columns that hold texts of two words or more.
        notify: Called with the columns that were chosen, once for each table without a column `text`.
    """
    if not source.exists():
        raise DataFileError(f"{source} does not exist.")
    if source.is_file():
        yield from _file_documents(source, name_in_utf8(source.name), columns, notify)
        return
    paths, progress = list(_visible_files(source)), current_progress()
    for number, path in enumerate(paths, 1):
        progress.advance(0, f"{number:,} of {len(paths):,} files")
        if isinstance(path, OSError):
            reason = (path.strerror or str(path)).lower()
            if Path(path.filename) == source:
                raise DataFileError(f"Cannot read {source}: {reason}.")
            name = f"{name_in_utf8(Path(path.filename).relative_to(source).as_posix())}/"
            yield Skipped(name, reason, name)
            continue
        name = name_in_utf8(path.relative_to(source).as_posix())
        if not real_path(path).is_relative_to(real_path(source)):
            yield Skipped(name, "it is a link that leads out of the folder", name)
        else:
            yield from _file_documents(path, name, columns, notify)
    if not paths:
        raise DataFileError(f"{source} holds no file; documents are {', '.join(TEXT_SUFFIXES + TABLE_SUFFIXES)} files.")


def is_embedded_folder(source: str | Path) -> bool:
    """Tell whether `embed_dataset` has written to a folder; a user's own plan.json is another one.

    A URL is taken for such a folder, since nothing else is indexed from there.
    """
    if "://" in str(source):
        return True
    try:
        plan = parse_json(Path(source, "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(plan, dict) and plan.keys() >= {"format", "encoder", "rows_per_part"}


def source_bytes(source: Path) -> int:
    """Size of the visible files of a folder, or of a file; 0 if there is none."""
    files = [source] if source.is_file() else [path for path in _visible_files(source) if isinstance(path, Path)]
    return sum(path.stat().st_size for path in files if path.is_file())


def unusable_reason(document: Document) -> str:
    """Return why a document cannot be indexed, or an empty string if it can."""
    if not document.text.strip():
        return _NO_TEXT
    if not document.id or len(document.id) > _MAX_ID_LENGTH:
        return f"an id must have 1 to {_MAX_ID_LENGTH} characters, this one has {len(document.id)}"
    return ""


def storable(text: str) -> str:
    """Remove NUL characters and replace lone surrogates, which no store can keep."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _visible_files(folder: Path) -> Iterator[Path | OSError]:
    """Yield the files of a folder and its subfolders, then an error for each of them that cannot be read."""
    errors: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))
    yield from errors


def _file_documents(path: Path, name: str, columns: Sequence[str], notify: Notify) -> Iterator[Document | Skipped]:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    try:
        if suffix.lower() in TABLE_SUFFIXES:
            yield from _table_documents(path, name, columns, notify)
        elif path.suffix.lower() in TEXT_SUFFIXES:
            text, metadata = read_file_text(path)
            yield Document(name, storable(text), {"path": name, **_row_metadata(metadata, ())})
        else:
            yield Skipped(name, f"files of the kind {path.suffix or 'without a suffix'} are not read", name)
    except (DataFileError, MissingExtraError) as error:
        yield Skipped(name, str(error).rstrip("."), name)


def _table_documents(path: Path, name: str, columns: Sequence[str], notify: Notify) -> Iterator[Document | Skipped]:
    for sheet, rows in read_tables(path):
        table_name, table_id = (f"{name}, sheet {sheet}", f"{name}:{sheet}") if sheet else (name, name)
        sample = list(islice(rows, _SAMPLED_ROWS))
        chosen = tuple(columns) or text_columns(sample)
        is_joined = not columns and chosen != ("text",)
        if not sample:
            yield Skipped(table_name, _NO_ROW)
        elif not chosen:
            reason = f"no column holds text; the columns are {', '.join(_column_names(sample))}"
            yield Skipped(table_name, reason)
            continue
        elif is_joined:
            notify(f"{table_name} has no column text; its texts are joined from {', '.join(chosen)}")
        for line, row in chain(sample, rows):
            row_name = f"{table_name}, line {line}"
            if isinstance(row, str):
                yield Skipped(row_name, row.rstrip("."), name)
            else:
                if is_joined:  # a row need not have all of them
                    row |= {column: "" for column in chosen if row.get(column) is None}
                yield row_document(row, chosen, name=row_name, default_id=f"{table_id}:{line}", path=name)


def _column_names(rows: Sequence[RowOrError]) -> list[str]:
    return list(dict.fromkeys(str(name) for _, row in rows if not isinstance(row, str) for name in row))


def text_columns(rows: Sequence[RowOrError]) -> tuple[str, ...]:
    """Return `text` if there is such a column; else the columns that hold text, none if there is none.

    Those are columns with two words per value on average, and titles; if all values are shorter, columns of words.
    """
    names = _column_names(rows)
    if "text" in names or not names:
        return ("text",)
    n_words = {name: _mean_words(rows, name) for name in names if name not in _ID_COLUMNS}
    texts = [name for name, count in n_words.items() if count >= _MIN_WORDS]
    if not texts:
        return tuple(name for name, count in n_words.items() if count >= 1)
    return tuple(name for name in n_words if name in texts or (name.lower() in _TITLE_COLUMNS and n_words[name]))


def _mean_words(rows: Sequence[RowOrError], column: str) -> float:
    """Return the mean number of words in a column's values; 0 if one of them is not a string."""
    values = [row[column] for _, row in rows if not isinstance(row, str) and row.get(column) not in (None, "")]
    if not values or not all(isinstance(value, str) for value in values):
        return 0.0
    return sum(0 if _is_address(value) else len(_WORD.findall(value)) for value in values) / len(values)


def _is_address(value: str) -> bool:
    """Tell whether a value is a URL or an e-mail address."""
    return ("://" in value or "@" in value) and not re.search(r"\s", value)


def row_document(
    row: Mapping[str, Any],
    columns: Sequence[str],
    *,
    name: str,
    default_id: str = "",
    path: str = "",
    vector: NDArray[np.float32] | None = None,
) -> Document | Skipped:
    """Return the document of a row of a table or of a dict.

    Args:
        row: The row.
        columns: Its columns that are joined to the text; the others become metadata.
        name: What it is called if it is skipped.
        default_id: Its id if it has none; by default a hash of the text.
        path: The file it is from, if any.
        vector: The vector of the text, if it is known.
    """
    texts = [row.get(column) for column in columns]
    for column, text in zip(columns, texts, strict=True):
        if text is None:
            return Skipped(name, f"it has no {column!r}; the columns are {', '.join(map(str, row))}", path)
        if not isinstance(text, str):
            return Skipped(name, f"{column!r} is {type(text).__name__}, not a text", path)
    text = "\n".join(text for text in map(str, texts) if text.strip())
    id = next((row[key] for key in _ID_COLUMNS if row.get(key) not in (None, "")), default_id or _text_id(text))
    metadata = {**({"path": path} if path else {}), **_row_metadata(row, {*columns, *_ID_COLUMNS})}
    return Document(storable(str(id)), storable(text), metadata, vector)


def _row_metadata(row: Mapping[str, Any], used: Iterable[str]) -> dict[str, Any]:
    """Return the unused columns in a form that every store can keep; a dict in the column `metadata` is merged in."""
    values = {key: value for key, value in row.items() if key not in used and value is not None}
    nested = values.pop("metadata", {})
    values |= nested if isinstance(nested, dict) else {"metadata": nested}
    return {storable(str(key)): _storable_value(value) for key, value in values.items()}


def _storable_document(document: Document, number: int) -> Document:
    for name, value in (("id", document.id), ("text", document.text)):
        if not isinstance(value, str):
            raise InputError(
                f"Document {number} has the {name} {value!r}, which is no string; convert or drop it first."
            )
    metadata = {
        storable(str(name)): value if isinstance(value, dict) else _storable_value(value)
        for name, value in document.metadata.items()
    }
    vector = None if document.vector is None else np.asarray(document.vector, np.float32)
    return replace(document, text=storable(document.text), metadata=metadata, vector=vector)


def _storable_value(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_storable_value(item) for item in value]
    if isinstance(value, dict):
        return storable(json.dumps(value, ensure_ascii=False, default=str))
    return value if isinstance(value, int | float | None) else storable(str(value))


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
