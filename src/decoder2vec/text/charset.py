"""Detect the charset of a text file: UTF-8, UTF-16, or what Western spreadsheets write (Latin-1, as cp1252)."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO

from decoder2vec.errors import DataFileError

_BLOCK = 2**20
"""Bytes that are read at once; even, so that UTF-16 is never cut inside a unit."""
_MIN_PRINTABLE = 0.95
"""Share of the characters of a text that must be printable; below that it is binary."""
_MAX_ACCENTED = 0.4
"""Share of the letters of a Western text that may be outside ASCII; above that it is another script's charset."""
_MIN_VALID = 0.75
"""Share of the bytes outside ASCII that must be valid UTF-8, if not all are; in other charsets, at most half are."""
_MIN_ZEROS = 0.1
"""Share of the characters of UTF-16 that must have a zero byte, as Latin letters, digits and spaces do."""


def bom_charset(start: bytes) -> str:
    """Return the charset that the byte order mark at the start of a file tells; UTF-8 if there is none."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def detect_charset(file: BinaryIO) -> tuple[str, str]:
    """Return the charset of a text file, which is read from its start to its end, and how to handle decoding errors.

    Errors are replaced in UTF-8 of which a few bytes are broken; in all else they are strict.

    Raises:
        DataFileError: It is binary, or its charset cannot be determined; the message is a reason.
    """
    sample = block = file.read(_BLOCK)
    if bom_charset(block) == "utf-16":
        return "utf-16", "strict"
    if b"\x00" in block:
        return _utf16_without_bom(block), "strict"
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while block:
            sample = block
            decoder.decode(block)
            block = file.read(_BLOCK)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        file.seek(0)
        return ("utf-8-sig", "replace") if _is_mostly_utf8(file) else (_western(sample), "strict")
    return "utf-8-sig", "strict"


def decode_text(content: bytes) -> str:
    """Return the text of a file's content; raises DataFileError like `detect_charset`."""
    return content.decode(*detect_charset(io.BytesIO(content)))


def _is_mostly_utf8(file: BinaryIO) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    n_valid = n_bytes = 0
    while block := file.read(_BLOCK):
        n_valid += _n_not_ascii(decoder.decode(block).encode())
        n_bytes += _n_not_ascii(block)
    return n_valid >= _MIN_VALID * n_bytes


def _n_not_ascii(content: bytes) -> int:
    return len(content) - len(content.decode("ascii", "ignore"))


def _utf16_without_bom(sample: bytes) -> str:
    """Tell the byte order by where the zero bytes are: the first or the second of each character."""
    zeros, charset = max((sample[::2].count(0), "utf-16-be"), (sample[1::2].count(0), "utf-16-le"))
    try:
        text = codecs.getincrementaldecoder(charset)().decode(sample, final=len(sample) < _BLOCK)
    except UnicodeDecodeError:
        text = ""
    if zeros <= _MIN_ZEROS * len(text) or not _is_printable(text):
        raise DataFileError("it is binary, not text")
    return charset


def _western(sample: bytes) -> str:
    text = sample.decode("cp1252", "replace")
    if not _is_printable(text.replace("\ufffd", "?")):
        raise DataFileError("it is binary, not text")
    accented = sum(not character.isascii() for character in text)
    letters = accented + sum(character.isascii() and character.isalpha() for character in text)
    if "\ufffd" in text or accented > _MAX_ACCENTED * letters:
        raise DataFileError(
            "it is neither UTF-8, UTF-16 nor Latin-1; convert it first, for example with iconv -f cp1251 -t utf-8"
        )
    return "cp1252"


def _is_printable(text: str) -> bool:
    printable = sum(character.isprintable() or character.isspace() for character in text)
    return bool(text) and printable >= _MIN_PRINTABLE * len(text)


def half_pair_position(text: str) -> int | None:
    """Return where a text holds half of a surrogate pair, which only JSON can write and nothing can read; else None."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
