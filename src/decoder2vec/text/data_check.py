"""Which pairs were seen in training? A test pair among them makes the test easier than it looks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from decoder2vec.text.files import DataFile, DataRow, Kind, read_pairs

Hashes = NDArray[np.uint64]

SEEN_FILE = "seen.npy"


def pair_hashes(left: Sequence[str], right: Sequence[str]) -> Hashes:
    """One number for each pair, whichever text comes first; spaces and case do not matter."""
    return np.array([_hash(sorted((_plain(a), _plain(b)))) for a, b in zip(left, right, strict=True)], np.uint64)


def count_overlap(left: Sequence[str], right: Sequence[str], seen: Hashes) -> int:
    """How many of the pairs are among those seen."""
    return int(np.isin(pair_hashes(left, right), seen).sum())


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _hash(texts: Iterable[str]) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode()).digest()[:8], "little")


@dataclass(frozen=True)
class FileCheck:
    """What there is in a file."""

    kind: Kind
    columns: tuple[str, ...]
    rows: int
    texts: int
    different: int
    characters: tuple[int, int, int, int]
    """Of the different texts: the shortest, the median, 95 % of them at most, the longest."""
    empty: int
    """Rows that lack a text; a negative may be missing."""
    duplicates: int
    """Rows that say what a row before them says."""
    scores: tuple[float, float] | None = None
    """Of scored pairs: the lowest and the highest."""
    classes: dict[str, int] = field(default_factory=dict)
    """Rows of each label, the largest class first."""


@dataclass(frozen=True)
class Shared:
    """What two files have in common, each different pair and text counted once."""

    pairs: int
    all_pairs: int
    """Different pairs of the evaluation file; 0 where it holds single texts."""
    texts: int
    all_texts: int


def check_file(file: DataFile) -> FileCheck:
    """Count what is in a file; scores that are no numbers are an error that names the line."""
    every = list(file.texts())
    different = set(every)
    scored = file.kind == "scored pairs"
    scores = read_pairs(file.source).scores if scored else []
    marks = Counter(row.mark for row in file.rows if row.mark and not scored)
    return FileCheck(
        kind=file.kind,
        columns=file.columns,
        rows=len(file.rows),
        texts=len(every),
        different=len(different),
        characters=_spread([len(text) for text in different]),
        empty=sum(_lacks_text(row, file.kind) for row in file.rows),
        duplicates=len(file.rows) - len({row[1:] for row in file.rows}),
        scores=(min(scores), max(scores)) if scores else None,
        classes=dict(marks.most_common()),
    )


def shared_with(file: DataFile, evaluation: DataFile) -> Shared:
    """How much of an evaluation file also stands in a file: pairs in either order, whatever the spaces and case."""
    pairs, texts = _pairs(evaluation), _texts(evaluation)
    return Shared(
        pairs=len(np.intersect1d(pairs, _pairs(file), assume_unique=True)),
        all_pairs=len(pairs),
        texts=len(np.intersect1d(texts, _texts(file), assume_unique=True)),
        all_texts=len(texts),
    )


def _lacks_text(row: DataRow, kind: Kind) -> bool:
    alone = kind in ("labelled texts", "plain texts")
    return not (row.beside or alone) or not all(text.strip() for text in row.texts())


def _pairs(file: DataFile) -> Hashes:
    return np.unique(pair_hashes(*file.pairs()))


def _texts(file: DataFile) -> Hashes:
    texts = list(set(file.texts()))
    return np.unique(pair_hashes(texts, texts))  # a text is known by the pair that it makes with itself


def _spread(lengths: list[int]) -> tuple[int, int, int, int]:
    shortest, median, most, longest = np.percentile(lengths, [0, 50, 95, 100], method="inverted_cdf").tolist()
    return int(shortest), int(median), int(most), int(longest)
