"""What a data file holds, before anything is learned from it or measured on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from decoder2vec.text.files import read_pairs
from decoder2vec.text.overlap import Hashes, pair_hashes
from decoder2vec.text.rows import DataFile, DataRow, Kind


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
