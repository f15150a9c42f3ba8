"""Where a vector is read, in words: what the curves of a figure are grouped by."""

from __future__ import annotations

import re
from dataclasses import dataclass

_READING = re.compile(r"layer -?\d+(?P<normed> normed)?, (?P<rest>.*)", re.S)


@dataclass(frozen=True)
class Place:
    """Where a vector is read: the reading in words, and its layer."""

    label: str
    layer: int

    @property
    def group(self) -> str:
        """Everything but the layer: readings of one group make one curve."""
        if not (found := _READING.fullmatch(self.label)):
            return "reading by its number"
        return found["rest"] + (", normed" if found["normed"] else "")
