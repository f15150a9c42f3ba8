"""The text of one file: plain text, Markdown, PDF, Word. Whatever is wrong with a file becomes one sentence."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from decoder2vec.errors import DataFileError, MissingExtraError

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
