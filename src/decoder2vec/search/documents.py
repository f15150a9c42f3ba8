"""The text of one file: plain text, Markdown, PDF, Word. Whatever is wrong with a file becomes one sentence."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from decoder2vec.errors import DataFileError, InputError, MissingExtraError
from decoder2vec.text.files import rows_or_errors

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_LARGEST = 256 * 2**20
"""Bytes of XML a Word file may unpack to: more is a trap, not a document."""


def file_text(path: Path) -> str:
    """The text of a file by its suffix; a file that cannot be read is an error that says why."""
    try:
        return READERS[path.suffix.lower()](path)
    except (DataFileError, MissingExtraError):
        raise
    except UnicodeDecodeError:
        raise DataFileError("it is not UTF-8; convert it first, for example with iconv -f latin1 -t utf-8") from None
    except OSError as error:
        raise DataFileError((error.strerror or str(error)).lower()) from None
    except Exception as error:  # a broken PDF can raise anything
        raise DataFileError(f"it is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from None


def _plain(path: Path) -> str:
    text = path.read_text(encoding="utf-8-sig")
    if "\x00" in text:
        raise DataFileError("it is binary, not text")
    return text


def _pdf(path: Path) -> str:
    try:
        import pypdf
    except ImportError:
        raise MissingExtraError("pypdf", "index") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it complains about files that it then reads well
    pages = pypdf.PdfReader(path)
    if pages.is_encrypted and not pages.decrypt(""):
        raise DataFileError("it is encrypted; remove the password first")
    text = "\n\n".join(page.extract_text() for page in pages.pages)
    if not text.strip():
        raise DataFileError("it holds no text, only pictures; run OCR over it first")
    return text


def _docx(path: Path) -> str:
    with zipfile.ZipFile(path) as parts:
        part = parts.getinfo("word/document.xml")
        if part.file_size > _LARGEST:
            raise DataFileError(f"its text unpacks to {part.file_size / 2**20:.0f} MB")
        content = parts.read(part)
    if b"<!DOCTYPE" in content[:1024] or b"<!ENTITY" in content:
        raise DataFileError("it defines entities, which no word processor does")
    paragraphs = ElementTree.fromstring(content).iter(f"{_WORD}p")
    return "\n\n".join(text for paragraph in paragraphs if (text := _paragraph(paragraph)).strip())


def _paragraph(paragraph: ElementTree.Element) -> str:
    marks = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}
    return "".join(
        piece.text or "" if piece.tag == f"{_WORD}t" else marks.get(piece.tag, "") for piece in paragraph.iter()
    )


READERS: dict[str, Callable[[Path], str]] = {".txt": _plain, ".md": _plain, ".pdf": _pdf, ".docx": _docx}
"""Kinds of files that are one document each."""

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
"""Kinds of files in which every row is a document."""
_IDS = ("id", "_id")
_LONGEST_ID = 1000


@dataclass(frozen=True)
class Document:
    """A text under an id. The id is a name and never a path: nothing is opened by it."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Changes when the text or the metadata do."""
        said = json.dumps([self.text, self.metadata], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Skipped:
    """A file, row or document that was left out, and why."""

    name: str
    reason: str


def read_documents(source: Path, columns: Sequence[str] = ("text",)) -> Iterator[Document | Skipped]:
    """Every document of a file, or of all files of a folder and those below it; what cannot be read is named.

    A .txt, .md, .pdf or .docx file is one document, whose id is its path inside the folder. Every row of a .csv, .tsv
    or .jsonl file is one: `columns` are joined to its text, `id` or `_id` names it, and the other columns are its
    metadata. Hidden files and links that lead out of the folder are not followed.
    """
    if not source.exists():
        raise DataFileError(f"{source} does not exist.")
    if source.is_file():
        yield from _documents(source, source.name, columns)
        return
    found = False
    for path in _files(source):
        found = True
        name = path.relative_to(source).as_posix()
        if not path.resolve().is_relative_to(source.resolve()):
            yield Skipped(name, "it is a link that leads out of the folder")
        else:
            yield from _documents(path, name, columns)
    if not found:
        raise InputError(f"{source} holds no file; documents are {', '.join([*READERS, *TABLES])} files.")


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _documents(path: Path, name: str, columns: Sequence[str]) -> Iterator[Document | Skipped]:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    try:
        if suffix.lower() in TABLES:
            yield from _rows(path, name, columns)
        elif path.suffix.lower() in READERS:
            yield Document(name, clean(file_text(path)), {"path": name})
        else:
            yield Skipped(name, f"files of the kind {path.suffix or 'without a suffix'} are not read")
    except (DataFileError, MissingExtraError) as error:
        yield Skipped(name, str(error))


def _rows(path: Path, name: str, columns: Sequence[str]) -> Iterator[Document | Skipped]:
    for line, row in rows_or_errors(path):
        where = f"{name}, line {line}"
        if isinstance(row, str):
            yield Skipped(where, row.rstrip("."))
            continue
        texts = [row.get(column) for column in columns]
        missing = [column for column, text in zip(columns, texts, strict=True) if not isinstance(text, str)]
        if missing:
            yield Skipped(where, f"{missing[0]!r} is no text; the columns are {', '.join(map(str, row))}")
            continue
        given = next((row[key] for key in _IDS if row.get(key) not in (None, "")), f"{name}:{line}")
        metadata = {"path": name, **_metadata(row, {*columns, *_IDS})}
        yield Document(clean(str(given)), clean("\n".join(map(str, texts))), metadata)


def _metadata(row: dict[str, Any], used: Iterable[str]) -> dict[str, Any]:
    """What else a row says, in a form that every store can keep; a field `metadata` is taken apart."""
    said = {key: value for key, value in row.items() if key not in used and value is not None}
    inner = said.pop("metadata", {})
    said |= inner if isinstance(inner, dict) else {"metadata": inner}
    return {clean(str(key)): _value(value) for key, value in said.items()}


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return clean(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict) else value


def clean(text: str) -> str:
    """Without what no store can keep: NUL characters and halves of surrogate pairs."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def problem(document: Document) -> str:
    """Why a document cannot be indexed; empty if it can."""
    if not document.text.strip():
        return "it holds no text"
    if not document.id or len(document.id) > _LONGEST_ID:
        return f"an id has 1 to {_LONGEST_ID} characters, this one {len(document.id)}"
    return ""
