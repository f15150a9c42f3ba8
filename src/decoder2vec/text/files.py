"""Texts and pairs from the user's own files: txt, TSV, CSV, JSONL, each also gzipped, by column name."""

from __future__ import annotations

import csv
import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from decoder2vec.errors import DataFileError

_NAME_IT = "Name yours with --column."
CALL_IT_TEXT = "Call the one that holds the texts `text`."
"""For those who read texts where no column can be named."""
PAIR_COLUMNS = ("sentence1", "sentence2", "score")

Row = tuple[int, dict[str, Any] | str]
"""Line number, and the line's fields or the reason why it has none."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts with a score each."""

    name: str
    left: list[str]
    right: list[str]
    scores: list[float]
    skipped: int = 0
    """Lines that could not be used and were left out because the caller allowed it."""

    def __len__(self) -> int:
        return len(self.scores)

    def texts(self) -> list[str]:
        """Every different text, in order of appearance."""
        return list(dict.fromkeys([*self.left, *self.right]))


def read_texts(source: str | Path, column: str | None = None, *, cure: str = _NAME_IT) -> Iterator[str]:
    """Texts one by one: the lines of a txt file, or a column (default `text`) of a TSV, CSV or JSONL file.

    "-" reads standard input, as txt unless a column is named, then as JSONL.
    """
    kind = ("jsonl" if column else "txt") if str(source) == "-" else _kind(Path(source))
    if kind == "txt" and column:
        raise DataFileError(f"{source} is read as plain lines and has no column {column!r}; use .tsv, .csv or .jsonl.")
    for line, row in read_rows(source, kind):
        name = column or _default_column(row)
        _require([name], row, source, cure)
        if not isinstance(row[name], str):
            raise DataFileError(f"{source}, line {line}: {name} is {type(row[name]).__name__}, not a text.")
        yield row[name]


def read_rows(source: str | Path, kind: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every line, whatever the fields are; a line that has none is an error that names it."""
    for line, row in _rows(source, kind or _kind(Path(source))):
        if isinstance(row, str):
            raise DataFileError(f"{source}, line {line}: {row}")
        yield line, row


def rows_or_reasons(source: str | Path) -> Iterator[Row]:
    """Line number of every line, and its fields or why it has none: for those who go on after a bad line."""
    yield from _rows(source, _kind(Path(source)))


def read_columns(source: str | Path, columns: Sequence[str], *, limit: int | None = None) -> list[tuple[str, ...]]:
    """Rows of texts by column name, such as anchor, positive, negative: the first `limit` of them."""
    rows: list[tuple[str, ...]] = []
    for line, row in islice(read_rows(source), limit):
        _require(columns, row, source, "Name yours with columns in the configuration.")
        values = tuple(row[name] for name in columns)
        if not all(isinstance(value, str) for value in values):
            raise DataFileError(f"{source}, line {line}: one of {', '.join(columns)} is missing or not a text.")
        rows.append(values)
    if not rows:
        raise DataFileError(f"{source} holds no usable row.")
    return rows


def read_pairs(
    source: str | Path, columns: Sequence[str] = PAIR_COLUMNS, *, skip_bad: bool = False, limit: int | None = None
) -> Pairs:
    """Scored pairs by column name. A bad line is an error that names it, or skipped and counted if asked.

    `limit` takes that many pairs, evenly spread over the file.
    """
    if len(columns) != 3:
        raise DataFileError(f"Give three column names (text, text, score), not {len(columns)}: {', '.join(columns)}.")
    kind = _kind(Path(source))
    if kind == "txt":
        raise DataFileError(f"{source}: pairs are read from .tsv, .csv or .jsonl files (or those with .gz).")
    if limit is not None and limit < 1:
        raise DataFileError(f"A limit of {limit} pairs leaves nothing; give 1 or more.")
    found, skipped = [], 0
    for line, row in _rows(source, kind):
        pair = row if isinstance(row, str) else _pair(row, columns, source)
        if not isinstance(pair, str):
            found.append(pair)
        elif skip_bad:
            skipped += 1
        else:
            raise DataFileError(f"{source}, line {line}: {pair}")
    if not found:
        raise DataFileError(f"{source} holds no usable pair.")
    if limit is not None and limit < len(found):
        found = [found[round(i * (len(found) - 1) / max(1, limit - 1))] for i in range(limit)]
    left, right, scores = zip(*found, strict=True)
    return Pairs(_stem(Path(source)), list(left), list(right), list(scores), skipped)


def _pair(row: dict[str, Any], columns: Sequence[str], source: str | Path) -> tuple[str, str, float] | str:
    """The pair of a row, or the reason why it is none."""
    _require(columns, row, source, "Name yours with --columns.")
    left, right, score = (row[name] for name in columns)
    for name, text in zip(columns, (left, right), strict=False):
        if not isinstance(text, str):
            return f"{name} is {'missing' if text is None else type(text).__name__}, not a text."
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        return f"the score {score!r} is not a number."
    return (left, right, value) if math.isfinite(value) else f"the score {score!r} is not finite."


def _rows(source: str | Path, kind: str) -> Iterator[Row]:
    readers = {"txt": _read_txt, "tsv": _read_tsv, "csv": _read_csv, "jsonl": _read_jsonl}
    try:
        if str(source) == "-":
            yield from readers[kind](sys.stdin)
            return
        with _open(Path(source)) as handle:
            yield from readers[kind](handle)
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"{source} is not UTF-8 (byte {error.object[error.start]:#x} {error.reason}); "
            "convert it first, for example with iconv -f latin1 -t utf-8."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"Cannot read {source}: {getattr(error, 'strerror', None) or error}.") from None


def _open(path: Path) -> TextIO:
    if path.is_dir():
        raise DataFileError(f"{path} is a folder; give a file.")
    opener: Any = gzip.open if path.suffix == ".gz" else open
    handle: TextIO = opener(path, "rt", encoding="utf-8-sig", newline="")
    return handle


def _read_txt(handle: TextIO) -> Iterator[Row]:
    for number, line in enumerate(handle, 1):
        text = line.rstrip("\r\n")
        yield number, {"text": text.removeprefix("\ufeff") if number == 1 else text}


def _read_tsv(handle: TextIO) -> Iterator[Row]:
    """Plain tab-separated fields: quotes are text, since sentences are full of them."""
    names = handle.readline().rstrip("\r\n").split("\t")
    for number, line in enumerate(handle, 2):
        if fields := line.rstrip("\r\n"):
            values = fields.split("\t")
            row = dict.fromkeys(names) | dict(zip(names, values, strict=False))
            yield number, _too_many(values, names) or row


def _read_csv(handle: TextIO) -> Iterator[Row]:
    reader = csv.DictReader(handle, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield reader.line_num, f"{error}."
            return
        if row is None:
            return
        extra = row.pop(None, None)  # type: ignore[call-overload]
        yield reader.line_num, _too_many([*row, *(extra or [])], list(row)) or row


def _read_jsonl(handle: TextIO) -> Iterator[Row]:
    for number, line in enumerate(handle, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield number, f"not JSON ({error})."
            continue
        yield number, row if isinstance(row, dict) else f"a JSON object is wanted, not {type(row).__name__}."


def _too_many(values: Sequence[Any], names: Sequence[str]) -> str:
    return f"{len(values)} fields, but the header has {len(names)}." if len(values) > len(names) else ""


def _require(names: Sequence[str], row: dict[str, Any], source: str | Path, cure: str) -> None:
    missing = [name for name in names if name not in row]
    if missing:
        present = ", ".join(str(name) for name in row)
        raise DataFileError(f"{source} has no column {missing[0]!r}; it has: {present}. {cure}")


def _default_column(row: dict[str, Any]) -> str:
    return next((name for name in ("text", "sentence") if name in row), "text")


def _kind(path: Path) -> str:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}.get(suffix.lower(), "txt")


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]
