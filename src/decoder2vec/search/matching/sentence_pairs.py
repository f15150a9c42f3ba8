"""The sentences of two documents that say the most alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Resumes are written in lines, bullets and half sentences: a line ends one, and so does a semicolon.
_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\sa-z])|(?<=[。！？])|\s*[\r\n]+\s*|\s*;\s+")
_BULLET = re.compile(r"^[\s\-*•–#>]+")
_FEWEST = 2
"""Words below which a line is a heading or a number rather than something said; where nothing else is, it is kept."""


class SentencePair(NamedTuple):
    """A sentence of each side and how alike they are."""

    left: str
    right: str
    similarity: float


def sentences(text: str) -> list[str]:
    """What a text says, one statement after the other; bullets are taken off."""
    found = [bare for part in _END.split(text) if (bare := _BULLET.sub("", part or "").strip())]
    return [one for one in found if len(one.split()) >= _FEWEST or not one.isascii()] or found


def best_pairs(
    left: list[str], right: list[str], similarity: Callable[[list[str], list[str]], NDArray[Any]], most: int = 3
) -> list[SentencePair]:
    """The best pair, then the best among sentences that are not in it, and so on: at most so many."""
    if not left or not right or most < 1:
        return []
    scores = np.array(similarity(left, right), np.float64)
    pairs: list[SentencePair] = []
    for _ in range(min(most, *scores.shape)):
        row, column = divmod(int(scores.argmax()), scores.shape[1])
        pairs.append(SentencePair(left[row], right[column], float(scores[row, column])))
        scores[row, :] = scores[:, column] = -np.inf
    return pairs
