"""The documents of one side of a match, read from a file, a folder or a list.

What cannot be read is left out and named by file or line, never by its content: these are texts about people, and no
word of them belongs into a message or a log.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, InputError, MissingExtraError
from decoder2vec.matching.sections import field_kind
from decoder2vec.search.documents import storable
from decoder2vec.search.file_formats import TABLE_SUFFIXES, TEXT_SUFFIXES, read_file_text, read_tables
from decoder2vec.storage import name_in_utf8, real_path

TEXT_FIELDS = ("text", "description")
"""Fields that hold the text of a document; the first that is present is used."""
TITLE_FIELDS = ("title", "label")
"""Fields that hold its title, which is read as the first line of the text."""

_MAX_NAME_LENGTH = 60
"""Characters of the name that a document without one gets from its text."""


@dataclass(frozen=True)
class SideDocument:
    """A document of one side, such as a job or a resume."""

    id: str
    text: str
    title: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields. One named like a section (`skills`, `education` ...) is read as a section. A `name` is displayed
    but never encoded, since it says nothing about how well somebody fits."""

    @property
    def display_name(self) -> str:
        """Title, name or id, whichever is present first."""
        return self.title or self.fields.get("name") or self.id


@dataclass(frozen=True)
class Side:
    """The documents of one side."""

    name: str
    documents: list[SideDocument]
    skipped: list[str] = field(default_factory=list)
    """One sentence for each file or line that was left out."""

    def __len__(self) -> int:
        return len(self.documents)


SideSource = Side | str | Path | Sequence[SideDocument | str | Mapping[str, Any]]
"""A side, a file or folder, or a list of documents, texts and dicts."""


def to_side(source: SideSource, name: str) -> Side:
    """Return the side of anything that `match` accepts.

    Args:
        source: A side, returned unchanged; a file or folder, read by `read_side`; or a list of documents, texts and
            dicts. A dict is read like a row of a table. Without an id, a text or dict gets its index in the list.
        name: Name of the side, for a list.

    Raises:
        InputError: An item of the list has no text, or an id occurs twice.
        DataFileError: The file or folder has no usable document.
    """
    if isinstance(source, Side):
        return source
    if isinstance(source, str | Path):
        return read_side(source)
    documents = [_item_document(item, index, name) for index, item in enumerate(source)]
    if repeated := _repeated_id(documents):
        raise InputError(f"{name}: {repeated}")
    return Side(name, documents)


def read_side(source: str | Path) -> Side:
    """Read the documents of a .jsonl, .csv, .tsv or .xlsx file (one per row), of a text file, or of a folder."""
    path = Path(source)
    if not path.exists():
        raise DataFileError(f"{source} does not exist; give a .jsonl or .csv file or a folder.")
    results = list(_read_folder(path) if path.is_dir() else read_file_documents(path, name_in_utf8(path.name)))
    side = Side(
        path.name,
        [result for result in results if isinstance(result, SideDocument)],
        [result for result in results if isinstance(result, str)],
    )
    if not side.documents:
        why = f" ({len(side.skipped)} left out; the first: {side.skipped[0]})" if side.skipped else ""
        raise DataFileError(f"{source} holds no text to match{why}.")
    if repeated := _repeated_id(side.documents):
        raise DataFileError(f"{source}: {repeated}")
    return side


def _read_folder(folder: Path) -> Iterator[SideDocument | str]:
    root = real_path(folder)
    for file in sorted(folder.rglob("*")):
        name = name_in_utf8(str(file.relative_to(folder)))
        if file.is_dir() or any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if not real_path(file).is_relative_to(root):
            yield f"{name}: a link that leads out of the folder."
        else:
            yield from read_file_documents(file, name)


def read_file_documents(file: Path, name: str) -> Iterator[SideDocument | str]:
    """Yield the documents of one file, and a sentence for each part of it that cannot be used.

    Args:
        file: The file; its ending says the format.
        name: Its name, for ids and sentences.
    """
    if file.suffix.lower() in TABLE_SUFFIXES:
        yield from _read_table(file, name)
        return
    if file.suffix.lower() not in TEXT_SUFFIXES:
        yield f"{name}: this kind of file is not supported; give {', '.join(TEXT_SUFFIXES + TABLE_SUFFIXES)}."
        return
    try:
        text = read_file_text(file, keep_marks=True).text
    except MissingExtraError as error:
        yield f"{name}: {error}"
        return
    except DataFileError:  # without its message, which may quote the document
        yield f"{name}: cannot be read."
        return
    readable_name = " ".join(re.split(r"[\s_]+", Path(name).stem))
    yield (
        SideDocument(name, text.strip(), fields={"name": readable_name}) if text.strip() else f"{name}: no text in it."
    )


def _read_table(file: Path, name: str) -> Iterator[SideDocument | str]:
    try:
        for sheet, rows in read_tables(file):
            for line, row in rows:
                row_name = f"{name}, sheet {sheet}, line {line}" if sheet else f"{name}, line {line}"
                yield f"{row_name}: {row}" if isinstance(row, str) else _row_document(row, row_name, row_name)
    except DataFileError:
        yield f"{name}: cannot be read to its end; is it UTF-8?"


def _item_document(item: SideDocument | str | Mapping[str, Any], index: int, side_name: str) -> SideDocument:
    name = f"{side_name}, document {index}"
    if isinstance(item, SideDocument):
        return item
    if not isinstance(item, str | Mapping):
        raise InputError(f"{name}: give a text or a dict, not {type(item).__name__}.")
    document = _row_document({"text": item} if isinstance(item, str) else item, name, str(index))
    if isinstance(document, str):
        raise InputError(document)
    return document


def _row_document(row: Mapping[str, Any], name: str, default_id: str) -> SideDocument | str:
    """Return the document of a row, or the reason why there is none."""
    texts = {key: value.strip() for key, value in row.items() if isinstance(value, str) and value.strip()}
    title = next((texts[key] for key in TITLE_FIELDS if key in texts), "")
    text = next((texts[key] for key in TEXT_FIELDS if key in texts), "")
    fields = {key: value for key, value in texts.items() if key not in {*TITLE_FIELDS, *TEXT_FIELDS, "id"}}
    id = row.get("id")
    if not text and not any(field_kind(key) for key in fields):
        return f"{name}: no text; it is looked for in the fields {', '.join(TEXT_FIELDS)}."
    if isinstance(id, bool | list | dict):
        return f"{name}: the id is {type(id).__name__}, not a word or number."
    id = str(id).strip() if id is not None else ""
    if not title and not id.strip("0123456789"):  # a number tells a reader nothing
        fields.setdefault("name", _first_words(text))
    clean_fields = {storable(key): storable(value) for key, value in fields.items()}
    return SideDocument(storable(id or default_id), storable(text), storable(title), clean_fields)


def _first_words(text: str) -> str:
    """Return the first line of a text, cut to a length that fits into a list."""
    words = textwrap.shorten(text.partition("\n")[0], _MAX_NAME_LENGTH, placeholder=" …")
    return words if words != "…" else text[:_MAX_NAME_LENGTH]


def _repeated_id(documents: Sequence[SideDocument]) -> str:
    """Return a sentence about the first id that occurs twice, or an empty string."""
    seen: set[str] = set()
    for number, document in enumerate(documents, 1):
        if document.id in seen:
            return (
                f"the id {document.id!r} occurs twice, the second time as document {number}; "
                "give every document an id of its own."
            )
        seen.add(document.id)
    return ""
