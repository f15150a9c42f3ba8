"""Texts, pairs, triplets and labelled data from the user's files: txt, TSV, CSV and JSONL, each also gzipped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from decoder2vec.errors import DataFileError, InputError, TextError
from decoder2vec.text.charset import half_pair_position
from decoder2vec.text.tables import RowOrError, format_of, parse_rows

PAIR_COLUMNS = ("sentence1", "sentence2", "score")
TEXT_COLUMN_HINT = "Call the one that holds the texts `text`."
"""Hint for callers of `read_texts` that offer no way to name a column."""
_COLUMN_HINT = "Name yours with --column."
_PAIR_COLUMNS_HINT = "Name yours with --columns."

DataKind = Literal["records", "scored pairs", "inferences", "pairs", "triplets", "labelled texts", "plain texts"]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with one score each."""

    name: str
    left: list[str]
    right: list[str]
    scores: list[float]
    skipped: int = 0
    """Malformed lines that were skipped because the caller allowed it."""

    def __len__(self) -> int:
        return len(self.scores)

    def texts(self) -> list[str]:
        """Unique texts in order of appearance."""
        return list(dict.fromkeys([*self.left, *self.right]))

    def check_scores(self) -> None:
        """Raise DataFileError if all scores are equal, as that of a single pair is: no correlation is defined then."""
        if len(set(self.scores)) < 2:
            raise DataFileError(
                f"{self.name}: every score is {self.scores[0]:g}; a correlation needs pairs with different scores."
            )

    def limit(self, count: int | None) -> ScoredPairs:
        """Return at most `count` pairs, evenly spaced; all if it is None."""
        if count is not None and count < 1:
            raise InputError(f"A limit of {count} pairs leaves nothing; give 1 or more.")
        if count is None or count >= len(self):
            return self
        rows = [round(index * (len(self) - 1) / max(1, count - 1)) for index in range(count)]
        left, right = ([texts[row] for row in rows] for texts in (self.left, self.right))
        return replace(self, left=left, right=right, scores=[self.scores[row] for row in rows])


class DataRow(NamedTuple):
    """One row of a data file. Duplicate rows differ only in `line`."""

    line: int
    text: str
    """The anchor, the first text of a pair, or the only text."""
    positives: tuple[str, ...] = ()
    """The positives of an anchor, or the second text of a pair."""
    negatives: tuple[str, ...] = ()
    """The negatives; blank ones are dropped, because that is how a table leaves a cell empty."""
    label: str = ""
    """The label or score as written in the file."""
    source: str = ""
    """Where the row comes from, by the column `source`."""
    scores: tuple[float, ...] = ()
    """What a teacher gave the positive and each negative, by the column `scores`; empty where there is none."""

    def texts(self) -> tuple[str, ...]:
        """All texts of the row."""
        return (self.text, *self.positives, *self.negatives)

    def content(self) -> tuple[object, ...]:
        """What equal rows have in common: all but line, source and scores."""
        return (self.text, self.positives, self.negatives, self.label)


@dataclass(frozen=True)
class DataFile:
    """All rows of a data file, and which kind of data its columns make."""

    source: Path
    kind: DataKind
    columns: tuple[str, ...]
    rows: list[DataRow]

    def texts(self) -> Iterator[str]:
        """Every text of every row, repetitions included."""
        return (text for row in self.rows for text in row.texts())

    def pairs(self) -> tuple[list[str], list[str]]:
        """Left and right texts of all pairs within rows: the first text with each positive and each negative."""
        pairs = [(row.text, other) for row in self.rows for other in row.texts()[1:]]
        return [left for left, _ in pairs], [right for _, right in pairs]


@dataclass(frozen=True)
class Triplets:
    """Rows of anchor, positive and hard negative."""

    name: str
    rows: list[tuple[str, str, str]]
    skipped: int = 0
    """Rows without three different texts: they cannot tell one layer from another."""

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, count: int, seed: int) -> Triplets:
        """Return `count` random triplets in random order, or all of them where there are fewer."""
        order = np.random.default_rng(seed).permutation(len(self.rows))[:count]
        return Triplets(self.name, [self.rows[index] for index in order], self.skipped)

    def texts(self) -> list[str]:
        """Unique texts in order of appearance."""
        return list(dict.fromkeys(text for row in self.rows for text in row))


def read_texts(source: str | Path, column: str | None = None, *, hint: str = _COLUMN_HINT) -> Iterator[str]:
    """Yield the texts of a file one by one.

    Args:
        source: A txt file (one text per line) or a TSV, CSV or JSONL file. "-" reads standard input, as txt unless a
            column is named, then as JSONL.
        column: The column with the texts; `text` or `sentence` by default.
        hint: The last sentence of the error for a missing column.
    """
    return (text for text, _ in read_texts_with_source(source, column, hint=hint))


def read_texts_with_source(
    source: str | Path, column: str | None = None, *, hint: str = _COLUMN_HINT
) -> Iterator[tuple[str, str]]:
    """Like `read_texts`, but yield each text with the value of the column `source`, empty where there is none."""
    file_format = ("jsonl" if column else "txt") if str(source) == "-" else format_of(Path(source))
    if file_format == "txt" and column:
        raise DataFileError(f"{source} is read as plain lines and has no column {column!r}; use .tsv, .csv or .jsonl.")
    for line, row in read_rows(source, file_format):
        name = column or _default_column(row)
        _require_columns([name], row, source, hint)
        if problem := text_problem(name, row[name]):
            raise DataFileError(f"{source}, line {line}: {problem}")
        yield row[name], _source_of(row)


@contextmanager
def naming_lines(*sources: str | Path) -> Iterator[None]:
    """Name the line of a file in errors about one of its texts, which otherwise have an index in a list.

    Args:
        *sources: The files that the texts are from; other sources are ignored.

    Raises:
        DataFileError: Instead of a `TextError` about a text of one of the files.
    """
    try:
        yield
    except TextError as error:
        for source in sources:
            for line, row in parse_rows(source, format_of(Path(source))) if Path(source).is_file() else ():
                if not isinstance(row, str) and any(error.text in _texts_of(value) for value in row.values()):
                    raise DataFileError(f"{source}, line {line}: the text {error.reason}") from error
        raise


def _texts_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def read_rows(source: str | Path, file_format: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and fields of every line; a malformed line is an error that names it.

    Args:
        source: The file, or "-" for standard input.
        file_format: txt, tsv, csv or jsonl; by default the one of the file's suffix.
    """
    for line, row in parse_rows(source, file_format or format_of(Path(source))):
        if isinstance(row, str):
            raise DataFileError(f"{source}, line {line}: {row}")
        yield line, row


def read_rows_or_errors(source: str | Path) -> Iterator[RowOrError]:
    """Like `read_rows`, but yield the reason as a string where a line is malformed, so that the caller can go on.

    The charset is guessed, which data for training and evaluation must not depend on.
    """
    yield from parse_rows(source, format_of(Path(source)), guess_charset=True)


def read_columns(source: str | Path, columns: Sequence[str], *, limit: int | None = None) -> list[tuple[str, ...]]:
    """Read rows of texts by column name.

    Args:
        source: The file.
        columns: Names of the columns, such as anchor, positive, negative.
        limit: Read only the first `limit` rows.
    """
    rows: list[tuple[str, ...]] = []
    for line, row in islice(read_rows(source), limit):
        _require_columns(columns, row, source, "Name yours with columns in the configuration.")
        values = tuple(row[name] for name in columns)
        for name, value in zip(columns, values, strict=True):
            if problem := text_problem(name, value):
                raise DataFileError(f"{source}, line {line}: {problem}")
        rows.append(values)
    if not rows:
        raise DataFileError(f"{source} holds no usable row.")
    return rows


def read_pairs(
    source: str | Path,
    columns: Sequence[str] = PAIR_COLUMNS,
    *,
    skip_bad: bool = False,
    limit: int | None = None,
    hint: str = _PAIR_COLUMNS_HINT,
) -> ScoredPairs:
    """Read scored pairs by column name.

    Args:
        source: A TSV, CSV or JSONL file.
        columns: Names of the columns of the two texts and the score.
        skip_bad: Skip and count malformed lines instead of raising an error that names the line.
        limit: Keep only this many pairs, evenly spaced over the file.
        hint: What to do if a column is missing, for the error.
    """
    if len(columns) != 3:
        raise InputError(f"Give three column names (text, text, score), not {len(columns)}: {', '.join(columns)}.")
    file_format = format_of(Path(source))
    if file_format == "txt":
        raise DataFileError(f"{source}: pairs are read from .tsv, .csv or .jsonl files (or those with .gz).")
    pairs, skipped = [], 0
    for line, row in parse_rows(source, file_format):
        pair = row if isinstance(row, str) else _pair_or_error(row, columns, source, hint)
        if not isinstance(pair, str):
            pairs.append(pair)
        elif skip_bad:
            skipped += 1
        else:
            raise DataFileError(f"{source}, line {line}: {pair}")
    if not pairs:
        raise DataFileError(f"{source} holds no usable pair.")
    left, right, scores = zip(*pairs, strict=True)
    name = Path(source).name.removesuffix(".gz").rsplit(".", 1)[0]
    return ScoredPairs(name, list(left), list(right), list(scores), skipped).limit(limit)


def read_data_file(source: str | Path) -> DataFile:
    """Read all rows of a file and detect the kind of data from its columns.

    In JSONL a field for positives or negatives may hold a list of texts.
    """
    parsed = list(read_rows(source))
    if not parsed:
        raise DataFileError(f"{source} holds no usable row.")
    columns = tuple(dict.fromkeys(name for _, fields in parsed for name in fields))
    layout = _detect_layout(source, columns)
    rows = [_data_row(line, fields, layout, source) for line, fields in parsed]
    return DataFile(Path(source), layout.kind, columns, rows)


def read_data_kind(source: str | Path) -> DataKind:
    """Detect the kind of data from the columns of a file's first row."""
    _, fields = next(read_rows(source), (0, None))
    if fields is None:
        raise DataFileError(f"{source} holds no usable row.")
    return _detect_layout(source, tuple(fields)).kind


def read_triplets(source: str | Path) -> Triplets:
    """Read columns anchor, positive, negative, or records; only the first positive and negative of a row are used."""
    file = read_data_file(source)
    if file.kind not in ("triplets", "records"):
        raise DataFileError(f"{source} holds {file.kind}; give triplets: columns anchor, positive and negative.")
    rows = [triplet for row in file.rows if (triplet := _triplet(row))]
    if not rows:
        raise DataFileError(f"{source} has no row of three different texts: anchor, positive and negative.")
    return Triplets(file.source.name.split(".")[0], rows, len(file.rows) - len(rows))


def _require_columns(names: Sequence[str], row: dict[str, Any], source: str | Path, hint: str) -> None:
    missing = [name for name in names if name not in row]
    if missing:
        present = ", ".join(str(name) for name in row)
        raise DataFileError(f"{source} has no column {missing[0]!r}; it has: {present}. {hint}")


def _default_column(row: dict[str, Any]) -> str:
    return next((name for name in ("text", "sentence") if name in row), "text")


def _pair_or_error(
    row: dict[str, Any], columns: Sequence[str], source: str | Path, hint: str
) -> tuple[str, str, float] | str:
    """The pair of a row, or the reason why the row is malformed."""
    _require_columns(columns, row, source, hint)
    left, right, score = (row[name] for name in columns)
    for name, text in zip(columns, (left, right), strict=False):
        if problem := text_problem(name, text):
            return problem
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        return f"the score {score!r} is not a number."
    return (left, right, value) if math.isfinite(value) else f"the score {score!r} is not finite."


# --- kinds of data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Names of the columns that make a kind of data."""

    kind: DataKind
    text: str
    positives: str = ""
    label: str = ""
    negatives: tuple[str, ...] = ()

    def required(self) -> list[str]:
        """The columns without which it is not this kind; records may lack a label."""
        names = [self.text, self.positives, "" if self.kind == "records" else self.label]
        return [name for name in names if name]


_LAYOUTS = (  # the first one whose required columns are present is used
    _Layout("records", "description", "pos", "label", ("neg",)),
    _Layout("scored pairs", "sentence1", "sentence2", "score"),
    _Layout("inferences", "premise", "hypothesis", "label"),
    _Layout("pairs", "anchor", "positive"),
    _Layout("pairs", "text1", "text2"),
    _Layout("labelled texts", "text", label="label"),
    _Layout("labelled texts", "sentence", label="label"),
    _Layout("plain texts", "text"),
    _Layout("plain texts", "sentence"),
)
_NEGATIVE_COLUMN = re.compile(r"negative(_\d+)?")


def _detect_layout(source: str | Path, columns: Sequence[str]) -> _Layout:
    layout = next((layout for layout in _LAYOUTS if set(layout.required()) <= set(columns)), None)
    if layout is None:
        known = "; ".join(", ".join(layout.required()) for layout in _LAYOUTS)
        raise DataFileError(f"{source} has the columns {', '.join(columns)}; rename them to one of: {known}.")
    negatives = tuple(name for name in columns if _NEGATIVE_COLUMN.fullmatch(name))
    if layout.kind == "pairs" and negatives:
        return replace(layout, kind="triplets", negatives=negatives)
    return layout


def _data_row(line: int, fields: dict[str, Any], layout: _Layout, source: str | Path) -> DataRow:
    location = f"{source}, line {line}"
    (text,) = _text_list(location, layout.text, [fields.get(layout.text)])
    positives = _text_list(location, layout.positives, fields.get(layout.positives)) if layout.positives else ()
    negatives = [
        negative
        for name in layout.negatives
        if fields.get(name) is not None
        for negative in _text_list(location, name, fields[name])
        if negative.strip()
    ]
    label = fields.get(layout.label)
    if label is None and layout.label not in layout.required():
        label = ""
    if not isinstance(label, str | int | float):
        raise DataFileError(f"{location}: {layout.label} is {_type_name(label)}, not a word or number.")
    scores = _scores_of(location, fields.get("scores"), 1 + len(negatives)) if layout.negatives else ()
    return DataRow(line, text, positives, tuple(negatives), str(label), _source_of(fields), scores)


def _scores_of(location: str, scores: Any, count: int) -> tuple[float, ...]:
    """The scores of a positive and its negatives; empty where there is no such list, as in any table."""
    if not isinstance(scores, list):
        return ()
    if len(scores) != count or not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise DataFileError(f"{location}: scores must be {count} numbers, of the positive and of each negative.")
    return tuple(map(float, scores))


def _source_of(fields: dict[str, Any]) -> str:
    source = fields.get("source")
    return "" if source is None else str(source)


def _text_list(location: str, name: str, value: Any) -> tuple[str, ...]:
    texts = _texts_of(value)
    for text in texts:
        if problem := text_problem(name, text):
            raise DataFileError(f"{location}: {problem}")
    return tuple(texts)


def text_problem(name: str, value: Any) -> str:
    """Return why a field is not a text that can be read; nothing if it is one."""
    if not isinstance(value, str):
        return f"{name} is {_type_name(value)}, not a text."
    if (position := half_pair_position(value)) is not None:
        return f"{name} holds half of a surrogate pair at character {position}; write the whole pair, or remove it."
    return ""


def _type_name(value: Any) -> str:
    return "missing" if value is None else type(value).__name__


def _triplet(row: DataRow) -> tuple[str, str, str] | None:
    """Anchor, first positive and first negative; None unless these are three different texts."""
    positive = next((text for text in row.positives if text.strip()), "")
    negative = next(iter(row.negatives), "")
    triplet = (row.text, positive, negative)
    complete = all(text.strip() for text in triplet) and len(set(triplet)) == 3
    return triplet if complete else None
