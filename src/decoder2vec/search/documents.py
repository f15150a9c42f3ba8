"""Documents to index, read from folders, files (text, Markdown, PDF, Word, tables), strings and dicts."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from decoder2vec.errors import DataFileError, InputError, MissingExtraError
from decoder2vec.text.files import read_rows_or_errors

TEXT_SUFFIXES = (".txt", ".md", ".pdf", ".docx")
"""Suffixes of files that are one document each."""
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
"""Suffixes of files in which every row is a document."""
_ID_COLUMNS = ("id", "_id")
_MAX_ID_LENGTH = 1000
_MAX_XML_BYTES = 256 * 2**20
"""Size that the XML of a Word file may unpack to; a larger one is a zip bomb, not a document."""
_WORD_NAMESPACE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


@dataclass(frozen=True)
class Document:
    """A text with an id and metadata. The id is only a name: nothing is opened by it, even if it looks like a path."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a hash of text and metadata."""
        content = json.dumps([self.text, self.metadata], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Skipped:
    """A file, row or document that was left out, and the reason."""

    name: str
    reason: str


DocumentSource = str | Path | Iterable[Document | Skipped | str | Mapping[str, Any]]
"""A folder or file, or documents, texts and dicts."""


def to_documents(source: DocumentSource, columns: Sequence[str] = ("text",)) -> Iterator[Document | Skipped]:
    """Yield the documents of anything that `Index.add` accepts.

    Args:
        source: A folder or file, read by `read_documents`; or an iterable of documents, texts and dicts. The id of a
            text is a hash of it. A dict is read like a row of a table; without an id it gets the hash of its text.
        columns: Columns of a table, or keys of a dict, that are joined to the text.
    """
    if isinstance(source, str) and not os.path.exists(source):
        raise DataFileError(f"{source[:200]!r} does not exist; give a folder or file, or a list of texts.")
    if isinstance(source, str | Path):
        yield from read_documents(Path(source), columns)
        return
    for number, item in enumerate(source, 1):
        if isinstance(item, Document | Skipped):
            yield item
        elif isinstance(item, str):
            yield Document(_text_id(item), storable(item))
        elif isinstance(item, Mapping):
            yield _row_document(item, columns, name=f"document {number}")
        else:
            raise InputError(f"Document {number} is a {type(item).__name__}; give documents, texts or dicts.")


def read_documents(source: Path, columns: Sequence[str] = ("text",)) -> Iterator[Document | Skipped]:
    """Yield every document of a file or of a folder and its subfolders, and `Skipped` for what cannot be read.

    A .txt, .md, .pdf or .docx file is one document, with its path inside the folder as id. Every row of a .csv, .tsv or
    .jsonl file is a document: its id is the column `id` or `_id`, or file name and line. Hidden files are ignored, and
    links that lead out of the folder are not followed.

    Args:
        source: File or folder.
        columns: Columns of a row that are joined to its text; the other columns become its metadata.
    """
    if not source.exists():
        raise DataFileError(f"{source} does not exist.")
    if source.is_file():
        yield from _file_documents(source, source.name, columns)
        return
    empty = True
    for path in _visible_files(source):
        empty = False
        name = path.relative_to(source).as_posix()
        if not path.resolve().is_relative_to(source.resolve()):
            yield Skipped(name, "it is a link that leads out of the folder")
        else:
            yield from _file_documents(path, name, columns)
    if empty:
        raise DataFileError(f"{source} holds no file; documents are {', '.join(TEXT_SUFFIXES + TABLE_SUFFIXES)} files.")


def unusable_reason(document: Document) -> str:
    """Return why a document cannot be indexed, or an empty string if it can."""
    if not document.text.strip():
        return "it holds no text"
    if not document.id or len(document.id) > _MAX_ID_LENGTH:
        return f"an id must have 1 to {_MAX_ID_LENGTH} characters, this one has {len(document.id)}"
    return ""


def storable(text: str) -> str:
    """Remove NUL characters and replace lone surrogates, which no store can keep."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def read_file_text(path: Path) -> str:
    """Return the text of a .txt, .md, .pdf or .docx file; raises DataFileError with the reason if it is unreadable."""
    readers = {".pdf": _read_pdf, ".docx": _read_docx}
    try:
        return readers.get(path.suffix.lower(), _read_plain)(path)
    except (DataFileError, MissingExtraError):
        raise
    except UnicodeDecodeError:
        raise DataFileError("it is not UTF-8; convert it first, for example with iconv -f latin1 -t utf-8") from None
    except OSError as error:
        raise DataFileError((error.strerror or str(error)).lower()) from None
    except Exception as error:  # a broken PDF can raise anything
        raise DataFileError(f"it is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from None


def _visible_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))


def _file_documents(path: Path, name: str, columns: Sequence[str]) -> Iterator[Document | Skipped]:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    try:
        if suffix.lower() in TABLE_SUFFIXES:
            yield from _table_documents(path, name, columns)
        elif path.suffix.lower() in TEXT_SUFFIXES:
            yield Document(name, storable(read_file_text(path)), {"path": name})
        else:
            yield Skipped(name, f"files of the kind {path.suffix or 'without a suffix'} are not read")
    except (DataFileError, MissingExtraError) as error:
        yield Skipped(name, str(error))


def _table_documents(path: Path, name: str, columns: Sequence[str]) -> Iterator[Document | Skipped]:
    for line, row in read_rows_or_errors(path):
        row_name = f"{name}, line {line}"
        if isinstance(row, str):
            yield Skipped(row_name, row.rstrip("."))
        else:
            yield _row_document(row, columns, name=row_name, default_id=f"{name}:{line}", path=name)


def _row_document(
    row: Mapping[str, Any], columns: Sequence[str], *, name: str, default_id: str = "", path: str = ""
) -> Document | Skipped:
    """Return the document of a row of a table or of a dict; `path` is the file it is from, if any."""
    texts = [row.get(column) for column in columns]
    missing = [column for column, text in zip(columns, texts, strict=True) if not isinstance(text, str)]
    if missing:
        return Skipped(name, f"{missing[0]!r} is not a text; the columns are {', '.join(map(str, row))}")
    text = "\n".join(map(str, texts))
    id = next((row[key] for key in _ID_COLUMNS if row.get(key) not in (None, "")), default_id or _text_id(text))
    metadata = {**({"path": path} if path else {}), **_row_metadata(row, {*columns, *_ID_COLUMNS})}
    return Document(storable(str(id)), storable(text), metadata)


def _row_metadata(row: Mapping[str, Any], used: Iterable[str]) -> dict[str, Any]:
    """Return the unused columns in a form that every store can keep; a dict in the column `metadata` is merged in."""
    values = {key: value for key, value in row.items() if key not in used and value is not None}
    nested = values.pop("metadata", {})
    values |= nested if isinstance(nested, dict) else {"metadata": nested}
    return {storable(str(key)): _storable_value(value) for key, value in values.items()}


def _storable_value(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_storable_value(item) for item in value]
    return storable(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict) else value


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _read_plain(path: Path) -> str:
    text = path.read_text(encoding="utf-8-sig")
    if "\x00" in text:
        raise DataFileError("it is binary, not text")
    return text


def _read_pdf(path: Path) -> str:
    try:
        import pypdf
    except ImportError:
        raise MissingExtraError("pypdf", "index") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it complains about files that it then reads well
    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise DataFileError("it is encrypted; remove the password first")
    text = "\n\n".join(page.extract_text() for page in reader.pages)
    if not text.strip():
        raise DataFileError("it holds no text, only pictures; run OCR over it first")
    return text


def _read_docx(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("word/document.xml")
        if entry.file_size > _MAX_XML_BYTES:
            raise DataFileError(f"its text unpacks to {entry.file_size / 2**20:.0f} MB")
        content = archive.read(entry)
    if b"<!DOCTYPE" in content[:1024] or b"<!ENTITY" in content:
        raise DataFileError("it defines entities, which no word processor does")
    paragraphs = ElementTree.fromstring(content).iter(f"{_WORD_NAMESPACE}p")
    return "\n\n".join(text for paragraph in paragraphs if (text := _docx_paragraph(paragraph)).strip())


def _docx_paragraph(paragraph: ElementTree.Element) -> str:
    breaks = {f"{_WORD_NAMESPACE}tab": "\t", f"{_WORD_NAMESPACE}br": "\n", f"{_WORD_NAMESPACE}cr": "\n"}
    return "".join(
        node.text or "" if node.tag == f"{_WORD_NAMESPACE}t" else breaks.get(node.tag, "") for node in paragraph.iter()
    )
