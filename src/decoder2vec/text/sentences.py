"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re

_END = re.compile(
    r"""
    (?<=[.!?])["'”’)\]]*\s+(?=["'“‘(\[]*[^\sa-z])   # a full stop, then anything but a small letter
    | (?<=[。！？])                                   # scripts that put no space behind it
    | \s*\n\s*\n\s*                                  # an empty line
    | \s*\n(?=\s*([-*•#>|]|\d+[.)])\s)               # an item of a list, a heading
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|approx|No|Fig|al|Inc|Ltd)\.$")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """First character and the one behind the last of every sentence; white space around sentences is left out."""
    spans, begin = [], 0
    for end in _END.finditer(text):
        if end.start() > begin and _ABBREVIATION.search(text, begin, end.start()):
            continue  # "Dr. Smith" is one sentence
        spans.append((begin, end.start() + len(end.group().rstrip()) if end.group().strip() else end.start()))
        begin = end.end()
    spans.append((begin, len(text)))
    return [kept for span in spans if (kept := trimmed(text, *span))]


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order."""
    return [text[begin:end] for begin, end in sentence_spans(text)]


def trimmed(text: str, begin: int, end: int) -> tuple[int, int] | None:
    """A span without the white space at its ends; None if nothing is left."""
    inside = text[begin:end]
    kept = inside.strip()
    begin += len(inside) - len(inside.lstrip())
    return (begin, begin + len(kept)) if kept else None
