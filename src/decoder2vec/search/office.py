"""Text of Office files (.docx, .pptx, .xlsx): XML in a zip archive, read as a stream.

Such files may be hostile. What is unpacked is limited in size and depth, and a document type, without which there are
no entities to expand, is refused.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat

from decoder2vec.errors import DataFileError
from decoder2vec.text.tables import RowOrError

_MAX_XML_BYTES = 128 * 2**20
"""Size that the XML of a file may unpack to in all; a larger one is a zip bomb, not a document."""
_MAX_RATIO, _MIN_XML_BYTES = 50, 4 * 2**20
"""It may also be at most this many times as large as the file; a small file may always unpack to the second."""
_MAX_DEPTH = 1000
"""Depth of nested elements; no Office program comes near."""
_BLOCK = 2**16
_BREAKS = {"br": "\n", "cr": "\n"}
_DATE_FORMATS = {*range(14, 23), *range(45, 48)}
"""Ids of the number formats of Excel that show dates and times."""
_LITERAL = re.compile(r'"[^"]*"|\[[^\[\]]*\]|\\.')
"""Parts of a number format that stand for themselves."""


_Event = tuple[Literal["start", "end", "text"], str, dict[str, str]]
"""Kind; tag without its namespace, or text; attributes of a start."""


class _Archive:
    """The XML parts of an Office file, which share one limit of size."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) == b"\xd0\xcf\x11\xe0":
                raise DataFileError("it has a password or is of an old version of Office; save it again without")
        self._zip = zipfile.ZipFile(path)
        self._max_bytes = min(_MAX_XML_BYTES, max(_MIN_XML_BYTES, _MAX_RATIO * path.stat().st_size))
        self._bytes_left = self._max_bytes

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def names(self) -> list[str]:
        return self._zip.namelist()

    def events(self, name: str) -> Iterator[_Event]:
        """Yield start, end and text of all elements of an XML part."""
        events: list[_Event] = []
        no_attributes: dict[str, str] = {}
        depth = 0

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal depth
            depth += 1
            if depth > _MAX_DEPTH:
                raise DataFileError("its XML is nested too deeply")
            local = {_local_name(key): value for key, value in attributes.items()} if attributes else attributes
            events.append(("start", _local_name(tag), local))

        def end(tag: str) -> None:
            nonlocal depth
            depth -= 1
            events.append(("end", _local_name(tag), no_attributes))

        def refuse_doctype(*_: object) -> None:
            raise DataFileError("it defines entities, which no Office program does")

        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.CharacterDataHandler = lambda text: events.append(("text", text, no_attributes))
        parser.StartDoctypeDeclHandler = refuse_doctype
        self._bytes_left -= self._zip.getinfo(name).file_size  # no more is read, even if there is more
        if self._bytes_left < 0:
            raise DataFileError(f"it unpacks to more than {self._max_bytes / 2**20:.0f} MB")
        with self._zip.open(name) as part:
            while block := part.read(_BLOCK):
                parser.Parse(block, False)
                yield from events
                events.clear()
        parser.Parse(b"", True)
        yield from events


def read_docx(path: Path) -> str:
    """Return the paragraphs of a Word file, separated by empty lines."""
    with _Archive(path) as archive:
        return _paragraphs(archive, "word/document.xml")


def read_pptx(path: Path) -> str:
    """Return the paragraphs of all slides of a PowerPoint file, separated by empty lines."""
    with _Archive(path) as archive:
        slides = [name for name in archive.names() if re.fullmatch(r"ppt/slides/slide\d+\.xml", name)]
        slides.sort(key=lambda name: (len(name), name))  # slide10 comes after slide9
        return "\n\n".join(text for name in slides if (text := _paragraphs(archive, name)))


def read_xlsx(path: Path) -> Iterator[tuple[str, Iterator[RowOrError]]]:
    """Yield name and rows of every sheet of an Excel file; the first row that is not empty names the columns.

    A row is the number that Excel shows, and column -> text, which is empty where the cell is. Columns without a name
    are called by their letter, and only in rows where they are not empty. Read the rows of a sheet before the next
    sheet.
    """
    with _Archive(path) as archive:
        shared = _shared_strings(archive)
        date_styles = _date_styles(archive)
        for sheet, part in _sheets(archive):
            yield sheet, _sheet_rows(archive, part, shared, date_styles)


@lru_cache(maxsize=1024)
def _local_name(name: str) -> str:
    return name.rpartition(" ")[2]


def _paragraphs(archive: _Archive, part: str) -> str:
    """Return the text of all elements `t` of Word or PowerPoint XML, by paragraph."""
    text = io.StringIO()
    paragraph: list[str] = []
    path: list[str] = []
    n_fallbacks = 0  # a fallback repeats the text of the shape before it for old programs
    for kind, name, _ in archive.events(part):
        if kind == "text":
            if path[-1] == "t" and not n_fallbacks:
                paragraph.append(name)
            continue
        if name == "p":  # starts or ends; a text box holds paragraphs inside a paragraph
            if (content := "".join(paragraph)).strip():
                text.write(f"{content}\n\n")
            paragraph.clear()
        elif name == "Fallback":
            n_fallbacks += 1 if kind == "start" else -1
        if kind == "end":
            path.pop()
            continue
        if name == "tab" and path and path[-1] == "r":  # elsewhere it is a tab stop
            paragraph.append("\t")
        elif name in _BREAKS:
            paragraph.append(_BREAKS[name])
        path.append(name)
    return text.getvalue().removesuffix("\n\n")


def _sheets(archive: _Archive) -> list[tuple[str, str]]:
    """Return name and part of every sheet, in the order of the workbook."""
    targets = {
        attributes.get("Id"): posixpath.normpath(posixpath.join("/xl", attributes.get("Target", "")))[1:]
        for kind, name, attributes in archive.events("xl/_rels/workbook.xml.rels")
        if kind == "start" and name == "Relationship"
    }
    sheets = [
        (attributes.get("name", ""), targets.get(attributes.get("id"), ""))
        for kind, name, attributes in archive.events("xl/workbook.xml")
        if kind == "start" and name == "sheet"
    ]
    return [(name, part) for name, part in sheets if part in archive.names()]


def _shared_strings(archive: _Archive) -> list[str]:
    strings: list[str] = []
    if "xl/sharedStrings.xml" not in archive.names():
        return strings
    pieces: list[str] = []
    inside, phonetic = "", False
    for kind, name, _ in archive.events("xl/sharedStrings.xml"):
        if kind == "text":
            if inside == "t" and not phonetic:
                pieces.append(name)
            continue
        inside = name if kind == "start" else ""
        if name == "rPh":  # how Japanese words are pronounced
            phonetic = kind == "start"
        elif name == "si" and kind == "end":
            strings.append("".join(pieces))
            pieces = []
    return strings


def _date_styles(archive: _Archive) -> set[str]:
    """Return the indices of the cell styles that show a number as a date."""
    if "xl/styles.xml" not in archive.names():
        return set()
    date_formats = {str(id) for id in _DATE_FORMATS}
    styles: list[str] = []
    in_cell_styles = False
    for kind, name, attributes in archive.events("xl/styles.xml"):
        if name == "cellXfs":
            in_cell_styles = kind == "start"
        elif kind == "start" and name == "numFmt":
            if re.search("[dmyhs]", _LITERAL.sub("", attributes.get("formatCode", "")), re.IGNORECASE):
                date_formats.add(attributes.get("numFmtId", ""))
        elif kind == "start" and name == "xf" and in_cell_styles:
            styles.append(attributes.get("numFmtId", ""))
    return {str(index) for index, format in enumerate(styles) if format in date_formats}


def _sheet_rows(archive: _Archive, part: str, shared: list[str], date_styles: set[str]) -> Iterator[RowOrError]:
    header: dict[str, str] = {}
    for number, cells in _cells(archive, part, shared, date_styles):
        if header:
            named = {header.get(column, column): value for column, value in cells.items()}
            yield number, dict.fromkeys(header.values(), "") | named
        else:
            header = cells


def _cells(
    archive: _Archive, part: str, shared: list[str], date_styles: set[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield number and column letter -> text of every row that is not empty."""
    number, column = 0, ""
    cells: dict[str, str] = {}
    cell: dict[str, str] = {}
    pieces: list[str] = []
    inside = ""
    for kind, name, attributes in archive.events(part):
        if kind == "text":
            if inside in ("v", "t"):
                pieces.append(name)
            continue
        inside = name if kind == "start" else ""
        if name == "row" and kind == "start":
            number, column, cells = int(attributes.get("r", number + 1)), "", {}
        elif name == "row" and cells:
            yield number, cells
        elif name == "c" and kind == "start":
            cell, pieces = attributes, []
            column = cell.get("r", "").rstrip("0123456789") or _next_column(column)
        elif name == "c" and (value := _cell_text(cell, "".join(pieces), shared, date_styles)):
            cells[column] = value


def _next_column(letters: str) -> str:
    """Return the letters of the next column: A at first, AA after Z."""
    if letters.endswith("Z"):
        return f"{_next_column(letters[:-1])}A"
    return f"{letters[:-1]}{chr(ord(letters[-1]) + 1)}" if letters else "A"


def _cell_text(cell: dict[str, Any], value: str, shared: list[str], date_styles: set[str]) -> str:
    kind = cell.get("t", "n")
    if not value or kind == "e":
        return ""
    if kind == "s":
        return shared[int(value)].strip()
    if kind == "b":
        return "TRUE" if value == "1" else "FALSE"
    if kind != "n":
        return value.strip()
    if cell.get("s") in date_styles:
        return _date(float(value))
    return f"{float(value):.15g}"  # as Excel shows it: 0.1 is stored as 0.10000000000000001


def _date(days: float) -> str:
    try:
        moment = datetime(1899, 12, 30) + timedelta(seconds=round(days * 86400))
    except OverflowError:
        return f"{days:.15g}"
    return moment.date().isoformat() if days == int(days) else moment.isoformat(sep=" ")
