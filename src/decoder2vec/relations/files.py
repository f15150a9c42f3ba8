"""Files of mentions, records and relations: one of them per line, or a document with all of its mentions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.relations.mentions import DEFAULT_LABEL, NONE, Mention, Relation
from decoder2vec.search.documents import text_columns
from decoder2vec.text.files import read_rows
from decoder2vec.text.sentences import sentence_spans

_SAMPLED_ROWS = 100
"""Rows by which the columns that hold text are chosen."""
_END_COLUMNS = (("head", "tail"), ("id1", "id2"), ("query-id", "corpus-id"))
"""Columns of the two ids of a relation."""
_LABEL_COLUMNS = ("label", "score")
_WRITE_OR_LEAVE_OUT = "write a word or number, or leave out the column."


def read_mentions(file: str | Path, columns: Sequence[str] = ()) -> list[Mention]:
    """Read a .txt, .jsonl, .tsv or .csv file of mentions or records.

    Args:
        file: `id` (or `_id`), `text` and, where they apply, `start`, `end` and `document` in each row; or a document
            in each row, with `text` and a list of `mentions`, each with `id`, `start` and `end`. A mention of a
            document has the id `document:mention`, and its text is the sentence that it is in.
        columns: Columns that are joined to the text; by default `text`, or all that hold text.

    Raises:
        DataFileError: A line has no text, a span outside of it, or nothing usable; the line is named.
    """
    return read_documents(file, columns)[0]


def read_documents(file: str | Path, columns: Sequence[str] = ()) -> tuple[list[Mention], list[Relation]]:
    """Read mentions like `read_mentions`, and the relations that documents list themselves, as in `read_relations`."""
    sample = list(islice(read_rows(file), _SAMPLED_ROWS))
    chosen = tuple(columns) or text_columns(sample)
    mentions: list[Mention] = []
    relations: list[Relation] = []
    lines: list[int] = []
    for line, row in read_rows(file):
        try:
            if isinstance(row.get("mentions"), list):
                of_document, known = _document(row, str(line))
                mentions += of_document
                relations += known
                lines += [line] * len(known)
            else:
                mentions.append(_mention(row, chosen, str(line)))
        except InputError as error:
            raise DataFileError(f"{file}, line {line}: {error}") from None
    if not mentions:
        raise DataFileError(f"{file} holds no mention.")
    return mentions, _with_labels(file, lines, relations)


def read_relations(file: str | Path) -> list[Relation]:
    """Read a .jsonl, .tsv or .csv file of relations.

    Args:
        file: `head`, `tail` (ids of mentions; or `id1`, `id2`, or BEIR's `query-id`, `corpus-id`) and `label` (or
            `score`). If all labels are 0 or 1, these say whether two mentions are related at all. Without labels, all
            are "related".

    Raises:
        DataFileError: A line does not name two mentions, or has no label where others have one.
    """
    relations, lines = [], []
    for line, row in read_rows(file):
        lines.append(line)
        try:
            relations.append(_relation(row))
        except InputError as error:
            raise DataFileError(f"{file}, line {line}: {error}") from None
    return _with_labels(file, lines, relations)


def _document(row: Mapping[str, Any], line: str) -> tuple[list[Mention], list[Relation]]:
    """The mentions and relations of a document that is one row."""
    document, text = _id(row) or line, row.get("text")
    if not isinstance(text, str):
        raise InputError("there is no text; give that of the document in `text`.")
    sentences = sentence_spans(text)
    mentions = []
    for number, each in enumerate(row["mentions"], 1):
        if not isinstance(each, Mapping):
            raise InputError(f"mention {number} is no object with id, start and end.")
        id = f"{document}:{_id(each) or number}"
        span = _span(each)
        if span is None:
            raise InputError(f"mention {number} has no start and end.")
        Mention(id, text, span)  # raises where the span is outside the text
        # a mention that crosses the end of a sentence keeps the whole text
        begin, end = next(((a, b) for a, b in sentences if a <= span[0] and span[1] <= b), (0, len(text)))
        mentions.append(Mention(id, text[begin:end], (span[0] - begin, span[1] - begin), document))
    known = row.get("relations") or []
    if not isinstance(known, list) or not all(isinstance(each, Mapping) for each in known):
        raise InputError("relations are a list of objects with head, tail and label.")
    relations = [_relation(each) for each in known]
    return mentions, [Relation(f"{document}:{r.head}", f"{document}:{r.tail}", r.label) for r in relations]


def _mention(row: Mapping[str, Any], columns: Sequence[str], default_id: str) -> Mention:
    parts = [row.get(column) for column in columns]
    if not any(isinstance(part, str) for part in parts) or not all(isinstance(part, str | None) for part in parts):
        names = ", ".join(columns) or "text"
        raise InputError(f"there is no text in {names}; the columns are {', '.join(map(str, row))}.")
    text = "\n".join(part for part in parts if part and part.strip()) if len(parts) > 1 else str(parts[0])
    span = _span(row)
    if span and len(parts) > 1:
        raise InputError("start and end are positions in one text; name its column alone.")
    return Mention(_id(row) or default_id, text, span, _value(row, "document"))


def _span(row: Mapping[str, Any]) -> tuple[int, int] | None:
    values = [value for value in (row.get("start"), row.get("end")) if value not in (None, "")]
    if len(values) == 1:
        raise InputError("give both start and end of the mention, or neither for the whole text.")
    if not all(str(value).strip().removeprefix("-").isdecimal() for value in values):
        raise InputError("start and end are numbers of characters.")
    return (int(values[0]), int(values[1])) if values else None


def _relation(row: Mapping[str, Any]) -> Relation:
    """A relation, with an empty label where the row has none."""
    ends = next((names for names in _END_COLUMNS if set(names) <= row.keys()), _END_COLUMNS[0])
    head, tail = (_value(row, column) for column in ends)
    if not head or not tail:
        raise InputError("give the ids of two mentions in the columns head and tail.")
    for column in _LABEL_COLUMNS:
        if column in row and row[column] is None:
            raise InputError(f"{column} is null; {_WRITE_OR_LEAVE_OUT}")
    return Relation(head, tail, next((value for column in _LABEL_COLUMNS if (value := _value(row, column))), ""))


def _with_labels(file: str | Path, lines: Sequence[int], relations: list[Relation]) -> list[Relation]:
    """Relations with names as labels: the default where all are blank; NONE or the default where all are 0 or 1."""
    blank = [line for line, relation in zip(lines, relations, strict=True) if not relation.label]
    if 0 < len(blank) < len(relations):
        raise DataFileError(
            f"{file}, line {blank[0]}: the label is blank, and others are not; write it, or {NONE} for no relation."
        )
    names = {"": DEFAULT_LABEL, "0": NONE, "0.0": NONE, "1": DEFAULT_LABEL, "1.0": DEFAULT_LABEL}
    if not {relation.label for relation in relations} <= {*names, DEFAULT_LABEL}:
        return relations
    return [Relation(each.head, each.tail, names.get(each.label, each.label)) for each in relations]


def _id(row: Mapping[str, Any]) -> str:
    return _value(row, "id") or _value(row, "_id")


def _value(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, bool | list | dict):
        raise InputError(f"{column} is {type(value).__name__}, not a word or number.")
    if value != value:  # NaN is not equal to itself
        raise InputError(f"{column} is NaN; {_WRITE_OR_LEAVE_OUT}")
    return "" if value is None else str(value).strip()
