"""Rows of txt, TSV, CSV and JSONL files, each also gzipped; where a row is malformed, the reason."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import sys
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from decoder2vec.errors import DataFileError
from decoder2vec.storage import parse_json
from decoder2vec.text.charset import bom_charset, detect_charset

RowOrError = tuple[int, dict[str, Any] | str]
"""Number of the line where a row begins, and its fields or the reason why it has none."""

_DELIMITERS = ",;\t|"
_SAMPLED_LINES = 20
"""Lines at the start of a table by which its delimiter is detected."""
_MAX_ROW = 16 * 2**20
"""Characters of a CSV row; a longer one has a quote that is never closed."""
_MAX_REREAD = 4 * _MAX_ROW
"""Characters of malformed CSV rows that are read again, in all, so that the time stays proportional to the file."""


def parse_rows(source: str | Path, file_format: str, *, guess_charset: bool = False) -> Iterator[RowOrError]:
    """Yield line number and fields of every row, or the reason why a row is malformed.

    Args:
        source: The file, or "-" for standard input.
        file_format: txt, tsv, csv or jsonl.
        guess_charset: Also read UTF-16 without a byte order mark, Latin-1, and UTF-8 of which a few bytes are broken.

    Raises:
        DataFileError: The file cannot be read at all.
    """
    parsers = {"txt": _parse_txt, "tsv": _parse_tsv, "csv": _parse_csv, "jsonl": _parse_jsonl}
    try:
        if str(source) == "-":
            if isinstance(sys.stdin, io.TextIOWrapper):  # like files in UTF-8, whatever the locale says
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
            yield from parsers[file_format](sys.stdin)
            return
        with _open(Path(source), guess_charset) as handle:
            yield from parsers[file_format](handle)
    except _DoubledColumn as error:
        raise DataFileError(f"{source} has two columns {error.args[0]!r}; rename or remove one.") from None
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"{source} is not UTF-8 (byte {error.object[error.start]:#x} {error.reason}); "
            "convert it first, for example with iconv -f latin1 -t utf-8."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"Cannot read {source}: {getattr(error, 'strerror', None) or error}.") from None


def format_of(path: Path) -> str:
    """Return the format by the suffix of a file: tsv, csv, jsonl or, for any other, txt."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}.get(suffix.lower(), "txt")


def _open(path: Path, guess_charset: bool) -> TextIO:
    if path.is_dir():
        raise DataFileError(f"{path} is a folder; give a file.")
    opener: Any = gzip.open if path.suffix == ".gz" else open
    raw = opener(path, "rb")
    try:
        if guess_charset and raw.seekable():  # a pipe can be read only once
            charset, errors = detect_charset(raw)
            raw.seek(0)
        else:
            charset, errors = bom_charset(raw.peek(2)), "strict"
    except BaseException:
        raw.close()
        raise
    return io.TextIOWrapper(raw, encoding=charset, errors=errors, newline="")


def _parse_txt(handle: TextIO) -> Iterator[RowOrError]:
    for number, line in enumerate(handle, 1):
        text = line.rstrip("\r\n")
        yield number, {"text": text.removeprefix("\ufeff") if number == 1 else text}


def _parse_tsv(handle: TextIO) -> Iterator[RowOrError]:
    """Split at tabs only: quotes are text, because sentences contain many of them."""
    header = handle.readline()
    if "\t" not in header and any(delimiter in header for delimiter in _DELIMITERS):
        yield from _parse_csv(chain([header], handle))  # a CSV file that is called .tsv
        return
    names = header.rstrip("\r\n").split("\t")
    _check_names(names)
    for number, line in enumerate(handle, 2):
        if fields := line.rstrip("\r\n"):
            values = fields.split("\t")
            row = dict.fromkeys(names) | dict(zip(names, values, strict=False))
            yield number, _extra_fields_error(values, names) or row


def _parse_csv(handle: Iterable[str]) -> Iterator[RowOrError]:
    """Parse rows one by one; a malformed row does not affect the others.

    A quote that is not closed takes in the rows after it. So after an error, reading goes on with the second line of
    the malformed row. Until its end, only complete rows are accepted: the others are pieces of it.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_ROW))
    handle = iter(handle)
    sample = list(islice(handle, _SAMPLED_LINES))
    lines = _CsvLines(chain(sample, handle))
    reader = csv.reader(lines, delimiter=_detect_delimiter(sample), strict=True)
    names: list[str] = []
    malformed_until = 0
    while True:
        first = lines.begin_row()
        try:
            values = next(reader, None)
        except csv.Error as error:
            malformed_until = max(malformed_until, lines.number)
            yield first, _csv_error(error, first, lines.number, lines.reread())
            if not names:
                return  # nothing can be read without a header
            continue
        if values is None:
            return
        if not names:
            names = values
            _check_names(names)
        elif values and len(values) < len(names) and first <= malformed_until:
            yield first, "a piece of a malformed row above."
        elif values:
            row = dict.fromkeys(names) | dict(zip(names, values, strict=False))
            yield first, _extra_fields_error(values, names) or row


class _DoubledColumn(ValueError):
    """Two columns of a table have the same name, so that it is not known which one is meant."""


def _check_names(names: Sequence[str]) -> None:
    if doubled := doubled_name(names):
        raise _DoubledColumn(doubled)


def doubled_name(names: Iterable[str]) -> str:
    """The first name that occurs twice; empty if there is none. Columns without a name do not count."""
    counts = Counter(names)
    return next((name for name, count in counts.items() if name and count > 1), "")


def _csv_error(error: csv.Error, first: int, last: int, reread: bool) -> str:
    reason = "a quote is opened and never closed" if str(error) == "unexpected end of data" else str(error)
    return f"{reason}." if reread else f"{reason}; lines {first} to {last} are lost."


class _CsvLines:
    """Lines of a CSV file, of which those of the current row can be read again."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.number = 0
        """Number of the last line that was read."""
        self._lines = lines
        self._again: deque[str] = deque()
        self._row: list[str] = []
        self._row_length = 0
        self._reread_left = _MAX_REREAD

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        if self._row_length > _MAX_ROW:
            raise csv.Error(f"a row of more than {_MAX_ROW} characters, so a quote is not closed")
        line = self._again.popleft() if self._again else next(self._lines)
        self.number += 1
        self._row.append(line)
        self._row_length += len(line)
        return line

    def begin_row(self) -> int:
        """Forget the lines of the last row, and return the number of the line that comes next."""
        self._row, self._row_length = [], 0
        return self.number + 1

    def reread(self) -> bool:
        """Go back to the second line of the current row; return False if too much was read again already."""
        length = self._row_length - len(self._row[0])
        if length > self._reread_left:
            return False
        self._reread_left -= length
        self._again.extendleft(reversed(self._row[1:]))
        self.number -= len(self._row) - 1
        return True


def _detect_delimiter(sample: Sequence[str]) -> str:
    """Return the delimiter by which most rows have as many fields as the header, at least two; else a comma."""

    def n_consistent(delimiter: str) -> int:
        widths: list[int] = []
        with contextlib.suppress(csv.Error):  # a field that is too long: the rows before it are enough
            widths.extend(len(row) for row in csv.reader(sample, delimiter=delimiter) if row)
        return widths.count(widths[0]) if widths and widths[0] > 1 else 0

    return max(_DELIMITERS, key=n_consistent)


def _parse_jsonl(handle: TextIO) -> Iterator[RowOrError]:
    for number, line in enumerate(handle, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            yield number, f"not JSON ({error})."
            continue
        yield number, row if isinstance(row, dict) else f"expected a JSON object, not {type(row).__name__}."


def _extra_fields_error(values: Sequence[Any], names: Sequence[str]) -> str:
    return f"{len(values)} fields, but the header has {len(names)}." if len(values) > len(names) else ""
