"""Which pairs were seen in training? A test pair among them makes the test easier than it looks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

SEEN_FILE = "seen.npy"


def pair_hashes(left: Sequence[str], right: Sequence[str]) -> Hashes:
    """One number for each pair, whichever text comes first; spaces and case do not matter."""
    return np.array([_hash(sorted((_plain(a), _plain(b)))) for a, b in zip(left, right, strict=True)], np.uint64)


def overlapping(left: Sequence[str], right: Sequence[str], seen: Hashes) -> int:
    """How many of the pairs are among those seen."""
    return int(np.isin(pair_hashes(left, right), seen).sum())


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _hash(texts: Iterable[str]) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode()).digest()[:8], "little")
