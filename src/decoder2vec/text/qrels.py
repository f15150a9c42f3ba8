"""Relevance judgements (qrels): a table in BEIR's layout, or lines of TREC."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError
from decoder2vec.text.files import read_rows
from decoder2vec.text.tables import format_of

_COLUMNS = ("query-id", "corpus-id", "score")


def read_qrels(file: str | Path, *, whole: bool = False) -> dict[str, dict[str, float]]:
    """Read query id -> document id -> grade; grades without a fraction are integers.

    Args:
        file: A .tsv, .csv or .jsonl file with the columns query-id, corpus-id and score, or a file of TREC: query, 0,
            document and grade in each line.
        whole: Refuse grades with a fraction, which trec_eval does not take.

    Raises:
        DataFileError: The file cannot be read or holds no judgement, or a line has other fields, no number, or another
            grade than an earlier line for the same query and document.
    """
    path = Path(file)
    try:
        return _read(path, whole)
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataFileError(f"{path} is not a text file in UTF-8.") from None


def _read(path: Path, whole: bool) -> dict[str, dict[str, float]]:
    number = "a whole number" if whole else "a number"
    file_format = _table_format(path)
    expected = f"query-id, corpus-id and {number} as score" if file_format else f"query, 0, document and {number}"
    qrels: dict[str, dict[str, float]] = {}
    for line, fields in _table_rows(path, file_format) if file_format else _trec_lines(path):
        try:
            query, document, grade = fields[0], fields[1], _to_grade(fields[2], whole)
        except (IndexError, TypeError, ValueError):
            raise DataFileError(f"{path}, line {line}: qrels have {expected}.") from None
        if qrels.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataFileError(f"{path}, line {line}: {query} and {document} have another score in an earlier line.")
    if not qrels:
        raise DataFileError(f"{path} holds no judgement.")
    return qrels


def _table_format(path: Path) -> str | None:
    """The format of a file that names its columns; None for lines of TREC."""
    file_format = format_of(path)
    if file_format in ("csv", "jsonl") or path.suffix == ".gz":
        return file_format
    with path.open("rb") as handle:
        fields = handle.readline().split()
    if file_format == "tsv":  # a first line of TREC ends in a grade, a header in any charset does not
        return None if len(fields) in (3, 4) and _is_number(fields[-1]) else "tsv"
    return "tsv" if _COLUMNS[0].encode() in fields else None


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _table_rows(path: Path, file_format: str) -> Iterator[tuple[int, list[Any]]]:
    """Line number and fields of every row of a table; a row that lacks a column has fewer fields."""
    for line, row in read_rows(path, file_format):
        yield line, [row[name] if name == "score" else str(row[name]) for name in _COLUMNS if name in row]


def _trec_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and query, document and grade of every line; the second of four fields means nothing."""
    with path.open(encoding="utf-8-sig") as lines:
        for line, text in enumerate(lines, 1):
            if fields := text.split():
                yield line, [fields[0], *fields[-2:]] if len(fields) in (3, 4) else []


def _to_grade(value: Any, whole: bool) -> float:
    number = float(value)
    if not math.isfinite(number) or (whole and not number.is_integer()):
        raise ValueError(value)
    return int(number) if number.is_integer() else number
