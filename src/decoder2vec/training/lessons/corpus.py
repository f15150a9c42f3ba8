"""Plain texts to learn from, and some of them set aside to choose on."""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.errors import InputError

_EVERY = 20
_MOST = 500
_FEWEST = 4


def set_aside(texts: Sequence[str], objective: str) -> tuple[list[str], list[str]]:
    """Every twentieth text, at most 500, for a score; the others to learn from. White space alone is no text."""
    found = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(found) < _FEWEST:
        raise InputError(f"{objective} learns from plain texts, {_FEWEST} or more; there are {len(found)}.")
    step = max(2, min(_EVERY, len(found) // 2))
    apart = found[::step][:_MOST]
    chosen = set(apart)
    return [text for text in found if text not in chosen], apart
