"""Splitting of texts into sentences, and joining of chunks."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BOUNDARY = re.compile(
    r"""
    (?<=[.!?])["'”’)\]]*\s+(?=["'“‘(\[]*[^\sa-z])   # a full stop, then anything but a small letter
    | (?<=[。！？])                                   # scripts that put no space behind it
    | \s*\n\s*\n\s*                                  # an empty line
    | \s*\n(?=\s*([-*•#>|]|\d+[.)])\s)               # an item of a list, a heading
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|approx|No|Fig|al|Inc|Ltd)\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order."""
    return [text[begin:end] for begin, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return (begin, end) of every sentence in characters, without the white space around it."""
    spans, begin = [], 0
    for boundary in _BOUNDARY.finditer(text):
        if boundary.start() > begin and _ABBREVIATION.search(text, begin, boundary.start()):
            continue  # "Dr. Smith" is one sentence
        closing = (
            len(boundary.group().rstrip()) if boundary.group().strip() else 0
        )  # quotes and brackets behind the stop
        spans.append((begin, boundary.start() + closing))
        begin = boundary.end()
    spans.append((begin, len(text)))
    return [stripped for span in spans if (stripped := strip_span(text, *span))]


def strip_span(text: str, begin: int, end: int) -> tuple[int, int] | None:
    """Return the span without white space at its ends; None if nothing is left."""
    content = text[begin:end]
    stripped = content.strip()
    begin += len(content) - len(content.lstrip())
    return (begin, begin + len(stripped)) if stripped else None


def join_chunks(chunks: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text made of consecutive chunks, and (begin, end) of each of them in it.

    Where neither of two chunks has white space at their border, a space is put there: many splitters strip it.
    """
    parts: list[str] = []
    spans, end = [], 0
    for chunk in chunks:
        if parts and not parts[-1][-1:].isspace() and not chunk[:1].isspace():
            parts.append(" ")
            end += 1
        parts.append(chunk)
        spans.append((end, end := end + len(chunk)))
    return "".join(parts), spans
