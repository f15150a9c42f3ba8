"""Texts and pairs from the user's own files: txt, TSV, CSV, JSONL, each also gzipped, by column name."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np

from decoder2vec.errors import DataFileError

_NAME_IT = "Name yours with --column."
TEXT_COLUMN_HINT = "Call the one that holds the texts `text`."
"""For those who read texts where no column can be named."""
PAIR_COLUMNS = ("sentence1", "sentence2", "score")

Row = tuple[int, dict[str, Any] | str]
"""Line number, and the line's fields or the reason why it has none."""


@dataclass(frozen=True)
class ScoredPairs:
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


def rows_or_errors(source: str | Path) -> Iterator[Row]:
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
) -> ScoredPairs:
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
    return ScoredPairs(_stem(Path(source)), list(left), list(right), list(scores), skipped)


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


Kind = Literal["records", "scored pairs", "inferences", "pairs", "triplets", "labelled texts", "plain texts"]


class DataRow(NamedTuple):
    """One row. Rows that say the same differ in nothing but the line."""

    line: int
    first: str
    beside: tuple[str, ...] = ()
    """The positives of an anchor, or the other text of a pair."""
    against: tuple[str, ...] = ()
    """The negatives that are there; blank ones are left out, for that is how a table says that there is none."""
    mark: str = ""
    """Its label or score as written."""

    def texts(self) -> tuple[str, ...]:
        """Every text of the row."""
        return (self.first, *self.beside, *self.against)


@dataclass(frozen=True)
class DataFile:
    """A file of texts, read."""

    source: Path
    kind: Kind
    columns: tuple[str, ...]
    rows: list[DataRow]

    def texts(self) -> Iterator[str]:
        """Every text of every row, as often as it stands there."""
        return (text for row in self.rows for text in row.texts())

    def pairs(self) -> tuple[list[str], list[str]]:
        """The two sides of every pair that a row puts together, be it to draw them together or apart."""
        both = [(row.first, other) for row in self.rows for other in row.texts()[1:]]
        return [left for left, _ in both], [right for _, right in both]


@dataclass(frozen=True)
class _Layout:
    """Which columns make which kind of data."""

    kind: Kind
    first: str
    beside: str = ""
    mark: str = ""
    against: tuple[str, ...] = ()

    def needed(self) -> list[str]:
        """The columns without which it is not this kind; a record does well without a label."""
        names = [self.first, self.beside, "" if self.kind == "records" else self.mark]
        return [name for name in names if name]


_LAYOUTS = (  # the first that fits is taken
    _Layout("records", "description", "pos", "label", ("neg",)),
    _Layout("scored pairs", "sentence1", "sentence2", "score"),
    _Layout("inferences", "premise", "hypothesis", "label"),
    _Layout("pairs", "anchor", "positive"),
    _Layout("labelled texts", "text", mark="label"),
    _Layout("labelled texts", "sentence", mark="label"),
    _Layout("plain texts", "text"),
    _Layout("plain texts", "sentence"),
)
_NEGATIVE = re.compile(r"negative(_\d+)?")


def read_data_file(source: str | Path) -> DataFile:
    """All rows of a file, and the kind of data that its columns make; in JSONL a field may also hold several texts."""
    found = list(read_rows(source))
    if not found:
        raise DataFileError(f"{source} holds no usable row.")
    columns = tuple(dict.fromkeys(name for _, fields in found for name in fields))
    layout = _layout(source, columns)
    rows = [_row(line, fields, layout, source) for line, fields in found]
    return DataFile(Path(source), layout.kind, columns, rows)


def _layout(source: str | Path, columns: Sequence[str]) -> _Layout:
    fitting = [layout for layout in _LAYOUTS if set(layout.needed()) <= set(columns)]
    if not fitting:
        wanted = "; ".join(", ".join(layout.needed()) for layout in _LAYOUTS)
        raise DataFileError(f"{source} has the columns {', '.join(columns)}; rename them to one of: {wanted}.")
    negatives = tuple(name for name in columns if _NEGATIVE.fullmatch(name))
    if fitting[0].kind == "pairs" and negatives:
        return replace(fitting[0], kind="triplets", against=negatives)
    return fitting[0]


def _row(line: int, fields: dict[str, Any], layout: _Layout, source: str | Path) -> DataRow:
    where = f"{source}, line {line}"
    first = fields.get(layout.first)
    if not isinstance(first, str):
        raise _refused(where, layout.first, first, "a text")
    beside = _texts(where, layout.beside, fields.get(layout.beside)) if layout.beside else ()
    against = [
        text
        for name in layout.against
        if fields.get(name) is not None
        for text in _texts(where, name, fields[name])
        if text.strip()
    ]
    mark = fields.get(layout.mark)
    if mark is None and layout.mark not in layout.needed():
        mark = ""
    if not isinstance(mark, str | int | float):
        raise _refused(where, layout.mark, mark, "a word or number")
    return DataRow(line, first, beside, tuple(against), str(mark))


def _texts(where: str, name: str, value: Any) -> tuple[str, ...]:
    several = value if isinstance(value, list) else [value]
    for text in several:
        if not isinstance(text, str):
            raise _refused(where, name, text, "a text")
    return tuple(several)


def _refused(where: str, name: str, value: Any, wanted: str) -> DataFileError:
    found = "missing" if value is None else type(value).__name__
    return DataFileError(f"{where}: {name} is {found}, not {wanted}.")


@dataclass(frozen=True)
class Triplets:
    """Rows of anchor, positive and hard negative."""

    name: str
    rows: list[tuple[str, str, str]]
    left_out: int = 0
    """Rows that do not hold three different texts: they say the same about every layer, or nothing."""

    def __len__(self) -> int:
        return len(self.rows)

    def drawn(self, count: int, seed: int) -> Triplets:
        """So many of them by chance, in an order made by chance; all of them where there are fewer."""
        order = np.random.default_rng(seed).permutation(len(self.rows))[:count]
        return Triplets(self.name, [self.rows[number] for number in order], self.left_out)

    def texts(self) -> list[str]:
        """Every different text."""
        return list(dict.fromkeys(text for row in self.rows for text in row))


def read_triplets(source: str | Path) -> Triplets:
    """Columns anchor, positive, negative, or records; of several positives or negatives the first is taken."""
    file = read_data_file(source)
    if file.kind not in ("triplets", "records"):
        raise DataFileError(f"{source} holds {file.kind}; give triples: columns anchor, positive and negative.")
    rows = [triple for row in file.rows if (triple := _triple(row))]
    if not rows:
        raise DataFileError(f"{source} has no row of three different texts: anchor, positive and negative.")
    return Triplets(file.source.name.split(".")[0], rows, len(file.rows) - len(rows))


def _triple(row: DataRow) -> tuple[str, str, str] | None:
    positive = next((text for text in row.beside if text.strip()), "")
    negative = next(iter(row.against), "")
    triple = (row.first, positive, negative)
    whole = all(text.strip() for text in triple) and len(set(triple)) == 3
    return triple if whole else None
