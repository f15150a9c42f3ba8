"""One side of a match: documents from a file or a folder.

What cannot be read is named and left out, by file or line and never by what stands there: these are texts about
people, and no word of them belongs into a message or a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, MissingExtraError
from decoder2vec.matching.sections import kind_of
from decoder2vec.search.documents import READERS, file_text
from decoder2vec.text.files import rows_or_errors

TEXTS = ("text", "description")
"""Fields that hold the text of a document; the first that is there is taken."""
TITLES = ("title", "label")
"""Fields that say what it is; they are read as the first line of the text."""
_TABLES = (".jsonl", ".ndjson", ".csv", ".tsv")


@dataclass(frozen=True)
class Document:
    """A job, a resume, or whatever stands on a side."""

    id: str
    text: str
    title: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What else is known. A field named like a section (`skills`, `education` ...) is read as one; a `name` is shown
    and never read: it says nothing about how well somebody fits."""

    @property
    def shown(self) -> str:
        """What people call it."""
        return self.title or self.fields.get("name") or self.id


@dataclass(frozen=True)
class Side:
    """The documents of one side, and what was left out."""

    name: str
    documents: list[Document]
    skipped: list[str] = field(default_factory=list)
    """One sentence for each file or line that could not be used."""

    def __len__(self) -> int:
        return len(self.documents)


def read_side(source: str | Path) -> Side:
    """The documents of a .jsonl, .csv or .tsv file (one a row), of a text file (one), or of a folder of files."""
    path = Path(source)
    if not path.exists():
        raise DataFileError(f"{source} does not exist; give a .jsonl or .csv file or a folder.")
    found = list(_from_folder(path) if path.is_dir() else _from_file(path, path.name))
    side = Side(
        path.name,
        [one for one in found if isinstance(one, Document)],
        [one for one in found if isinstance(one, str)],
    )
    if not side.documents:
        why = f" ({len(side.skipped)} left out; the first: {side.skipped[0]})" if side.skipped else ""
        raise DataFileError(f"{source} holds no text to match{why}.")
    _refuse_twins(side, source)
    return side


def _from_folder(folder: Path) -> Iterator[Document | str]:
    inside = folder.resolve()
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_dir() or any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if not file.resolve().is_relative_to(inside):
            yield f"{name}: a link that leads out of the folder."
        else:
            yield from _from_file(file, name)


def _from_file(file: Path, name: str) -> Iterator[Document | str]:
    if file.suffix.lower() in _TABLES:
        yield from _from_table(file, name)
        return
    if file.suffix.lower() not in READERS:
        known = ", ".join([*READERS, *_TABLES])
        yield f"{name}: a kind of file that is not read; these are: {known}."
        return
    try:
        text = file_text(file)
    except MissingExtraError as error:
        yield f"{name}: {error}"
        return
    except DataFileError:  # its message may hold words of the document
        yield f"{name}: cannot be read."
        return
    yield Document(name, text.strip(), fields={"name": file.stem}) if text.strip() else f"{name}: no text in it."


def _from_table(file: Path, name: str) -> Iterator[Document | str]:
    try:
        for line, row in rows_or_errors(file):
            where = f"{name}, line {line}"
            yield f"{where}: {row}" if isinstance(row, str) else _document(row, where)
    except DataFileError:
        yield f"{name}: cannot be read to its end; is it UTF-8?"


def _document(row: Mapping[str, Any], where: str) -> Document | str:
    """The document of a row, or why it is none."""
    said = {key: value.strip() for key, value in row.items() if isinstance(value, str) and value.strip()}
    title = next((said[key] for key in TITLES if key in said), "")
    text = next((said[key] for key in TEXTS if key in said), "")
    number = row.get("id")
    fields = {key: value for key, value in said.items() if key not in {*TITLES, *TEXTS, "id"}}
    if not text and not any(kind_of(key) for key in fields):
        return f"{where}: no text; it is looked for in the fields {', '.join(TEXTS)}."
    if isinstance(number, bool | list | dict):
        return f"{where}: the id is {type(number).__name__}, not a word or number."
    name = str(number).strip() if number is not None else ""
    return Document(name or where, text, title, fields)


def _refuse_twins(side: Side, source: str | Path) -> None:
    seen: set[str] = set()
    for place, document in enumerate(side.documents, 1):
        if document.id in seen:
            raise DataFileError(
                f"{source}: the id {document.id!r} stands there twice, the second time as document {place}; "
                "give every document an id of its own."
            )
        seen.add(document.id)
