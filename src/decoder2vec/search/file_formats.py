"""Read the text and tables of files; the suffix determines the format."""

from __future__ import annotations

import codecs
import contextlib
import email
import email.policy
import logging
import re
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NamedTuple

from decoder2vec.errors import DataFileError, MissingExtraError
from decoder2vec.search.markup import PlainText, html_to_text, markdown_to_text, rst_to_text
from decoder2vec.search.office import read_docx, read_pptx, read_xlsx
from decoder2vec.text.charset import decode_text
from decoder2vec.text.files import read_rows_or_errors
from decoder2vec.text.tables import RowOrError

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".html", ".htm", ".eml", ".pdf", ".docx", ".pptx")
"""Suffixes of files that are one document each."""
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".xlsx")
"""Suffixes of files in which every row is a document."""
_META_CHARSET = re.compile(
    rb"""<meta[^>]{1,500}charset=["']?((?:iso|windows|cp|koi8|gb|big5|shift|euc)[\w-]{0,30})""", re.I
)
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class FileText(NamedTuple):
    """The text of a file and what else is known of it, such as its title."""

    text: str
    metadata: dict[str, Any]


def read_file_text(path: Path, *, keep_marks: bool = False) -> FileText:
    """Return the text of a file whose suffix is one of `TEXT_SUFFIXES`.

    Args:
        path: The file.
        keep_marks: Keep the marks of Markdown and reStructuredText, which distinguish headings from text.

    Raises:
        DataFileError: It cannot be read; the message is a reason.
    """
    readers: dict[str, Callable[[Path], FileText]] = {
        ".html": _read_html,
        ".htm": _read_html,
        ".eml": _read_email,
        ".pdf": lambda path: FileText(_read_pdf(path), {}),
        ".docx": lambda path: FileText(read_docx(path), {}),
        ".pptx": lambda path: FileText(read_pptx(path), {}),
    }
    if not keep_marks:
        readers[".md"] = lambda path: _titled(markdown_to_text(_read_plain(path)))
        readers[".rst"] = lambda path: _titled(rst_to_text(_read_plain(path)))
    try:
        reader = readers.get(path.suffix.lower())
        return reader(path) if reader else FileText(_read_plain(path), {})
    except Exception as error:
        raise _reason(error) from None


def read_tables(path: Path) -> Iterator[tuple[str, Iterator[RowOrError]]]:
    """Yield name and rows of every sheet of an Excel file; of any other table, its rows with an empty name.

    Read the rows of a sheet before the next sheet.

    Raises:
        DataFileError: It cannot be read; the message is a reason.
    """
    if path.suffix.lower() != ".xlsx":
        yield "", read_rows_or_errors(path)
        return
    try:
        for name, rows in read_xlsx(path):
            yield name, _with_reasons(rows)
    except Exception as error:
        raise _reason(error) from None


def _with_reasons(rows: Iterator[RowOrError]) -> Iterator[RowOrError]:
    try:
        yield from rows
    except Exception as error:
        raise _reason(error) from None


def _reason(error: Exception) -> Exception:
    """Return the error that says why a file cannot be read; a damaged file can raise anything."""
    if isinstance(error, DataFileError | MissingExtraError):
        return error
    if isinstance(error, OSError):
        return DataFileError((error.strerror or str(error)).lower())
    return DataFileError(f"it is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


def _titled(content: PlainText) -> FileText:
    return FileText(content.text, {"title": content.title} if content.title else {})


def _read_plain(path: Path) -> str:
    return decode_text(path.read_bytes())


def _read_html(path: Path) -> FileText:
    return _titled(_with_title(html_to_text(_decode_html(path.read_bytes()))))


def _decode_html(content: bytes) -> str:
    """Decode a page by its byte order mark, else by the charset that it declares, else by what fits."""
    declared = None if content.startswith(_BYTE_ORDER_MARKS) else _META_CHARSET.search(content, 0, 4096)
    if declared:
        with contextlib.suppress(LookupError, UnicodeDecodeError):
            charset = codecs.lookup(declared[1].decode()).name
            if charset in ("iso8859-1", "cp1252"):  # browsers read both as the second, in which five bytes mean nothing
                return content.decode("cp1252", "replace")
            return content.decode(charset)
    return decode_text(content)


def _with_title(page: PlainText) -> PlainText:
    """Put the title before the text, unless the page shows it anyway."""
    return page if page.text.startswith(page.title) else PlainText(f"{page.title}\n\n{page.text}", page.title)


def _read_email(path: Path) -> FileText:
    """Return subject and text of an e-mail; its attachments are not read."""
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    body = message.get_body(("plain", "html"))
    content = body.get_content() if isinstance(body, EmailMessage) else ""
    if body is not None and body.get_content_type() == "text/html":
        content = html_to_text(content).text
    headers = {name: value for name in ("subject", "from", "date") if (value := _header(message, name))}
    text = "\n\n".join(part for part in (headers.get("subject", ""), content.strip()) if part)
    return FileText(text.replace("\r\n", "\n"), headers)


def _header(message: EmailMessage, name: str) -> str:
    """Return a header as text, a date in ISO format; empty if it is missing or malformed."""
    try:
        header = message[name]
        moment = getattr(header, "datetime", None)
        return moment.isoformat() if moment else " ".join(str(header or "").split())
    except Exception:  # the standard library's parser of headers raises anything on malformed ones
        return ""


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
