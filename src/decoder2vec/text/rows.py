"""Rows of any data file in one form, whatever its columns: a text, those beside it, those against it, its mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from decoder2vec.errors import DataFileError
from decoder2vec.text.files import read_rows

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


def read_data(source: str | Path) -> DataFile:
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
