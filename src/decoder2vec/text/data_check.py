"""Checks of data files: what a file contains, and which pairs and texts of an evaluation were also trained on.

A test pair that was seen in training makes the test easier than it looks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import EncoderError
from decoder2vec.text.files import DataFile, DataKind, DataRow, read_pairs

PairHashes = NDArray[np.uint64]
TextHashes = NDArray[np.uint64]


TRAINING_PAIRS_FILE = "seen.npy"
"""The file of a trained encoder that holds the hashes of its training pairs."""
TRAINING_TEXTS_FILE = "seen_texts.npy"
"""The file of a distilled encoder that holds the hashes of its training texts."""


def read_hashes(file: Path) -> NDArray[np.uint64] | None:
    """Return the hashes of the pairs or texts that an encoder was trained on; None if its folder has no such file.

    Raises:
        EncoderError: The file is damaged.
    """
    if not file.is_file():
        return None
    try:
        hashes: NDArray[np.uint64] = np.load(file, allow_pickle=False)
    except Exception as error:  # numpy raises many classes for a damaged header
        raise EncoderError(f"{file} cannot be read; delete it, or train the encoder again.") from error
    return hashes


@dataclass(frozen=True)
class FileCheck:
    """Counts of what a data file contains."""

    kind: DataKind
    columns: tuple[str, ...]
    rows: int
    texts: int
    unique_texts: int
    characters: tuple[int, int, int, int]
    """Lengths of the unique texts: minimum, median, 95th percentile, maximum."""
    empty: int
    """Rows that lack a text; a negative may be missing."""
    duplicates: int
    """Rows that repeat an earlier row."""
    scores: tuple[float, float] | None = None
    """Lowest and highest score of scored pairs."""
    classes: dict[str, int] = field(default_factory=dict)
    """Number of rows of each label, the largest class first."""


@dataclass(frozen=True)
class Overlap:
    """What an evaluation file shares with another file; each unique pair and text counts once."""

    shared_pairs: int
    total_pairs: int
    """Unique pairs of the evaluation file; 0 where it holds single texts."""
    shared_texts: int
    total_texts: int


def check_file(file: DataFile) -> FileCheck:
    """Count what is in a file; a score that is not a number is an error that names the line."""
    texts = list(file.texts())
    unique_texts = set(texts)
    scored = file.kind == "scored pairs"
    scores = read_pairs(file.source).scores if scored else []
    labels = Counter(row.label for row in file.rows if row.label and not scored)
    return FileCheck(
        kind=file.kind,
        columns=file.columns,
        rows=len(file.rows),
        texts=len(texts),
        unique_texts=len(unique_texts),
        characters=_length_percentiles(unique_texts),
        empty=sum(_lacks_text(row, file.kind) for row in file.rows),
        duplicates=len(file.rows) - len({row.content() for row in file.rows}),
        scores=(min(scores), max(scores)) if scores else None,
        classes=dict(labels.most_common()),
    )


def measure_overlap(file: DataFile, evaluation: DataFile) -> Overlap:
    """Count the pairs and texts of an evaluation file that are also in `file`.

    Neither the order of the two texts of a pair, nor white space, nor case matters.
    """
    pairs, texts = _pair_set(evaluation), _text_set(evaluation)
    return Overlap(
        shared_pairs=len(np.intersect1d(pairs, _pair_set(file), assume_unique=True)),
        total_pairs=len(pairs),
        shared_texts=len(np.intersect1d(texts, _text_set(file), assume_unique=True)),
        total_texts=len(texts),
    )


def hash_pairs(left: Sequence[str], right: Sequence[str]) -> PairHashes:
    """Return one 64-bit hash per pair; the order of the two texts, white space and case do not change it."""
    return np.array(
        [_hash(sorted((_normalise(a), _normalise(b)))) for a, b in zip(left, right, strict=True)], np.uint64
    )


def count_overlap(left: Sequence[str], right: Sequence[str], seen: PairHashes) -> int:
    """Count the pairs whose hashes are in `seen`."""
    return int(np.isin(hash_pairs(left, right), seen).sum())


def hash_texts(texts: Iterable[str]) -> TextHashes:
    """Return the sorted 64-bit hashes of the different texts; case, punctuation and white space do not change a hash.

    A million texts of 25 words take 9 seconds on one slow core, and 8 MB.
    """
    digests = b"".join(hashlib.blake2b(_words_of(text).encode(), digest_size=8).digest() for text in texts)
    return np.unique(np.frombuffer(digests, np.uint64))


def count_shared_texts(texts: Iterable[str], seen: TextHashes) -> tuple[int, int]:
    """Count the different texts whose hashes are in `seen`, and all different texts."""
    hashes = hash_texts(texts)
    return len(np.intersect1d(hashes, seen, assume_unique=True)), len(hashes)


class _LettersAndDigits(dict[int, str]):
    """A table for `str.translate` that keeps letters and digits; twice as fast as a regular expression."""

    def __missing__(self, code: int) -> str:
        self[code] = kept = chr(code) if chr(code).isalnum() else " "
        return kept


_LETTERS_AND_DIGITS = _LettersAndDigits()


def _words_of(text: str) -> str:
    """The words of a text in lower case; a text without any is only normalised."""
    return " ".join(text.lower().translate(_LETTERS_AND_DIGITS).split()) or _normalise(text)


def _normalise(text: str) -> str:
    return " ".join(text.lower().split())


def _hash(texts: Iterable[str]) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode()).digest()[:8], "little")


def _lacks_text(row: DataRow, kind: DataKind) -> bool:
    single = kind in ("labelled texts", "plain texts")
    return not (row.positives or single) or not all(text.strip() for text in row.texts())


def _pair_set(file: DataFile) -> PairHashes:
    return np.unique(hash_pairs(*file.pairs()))


def _text_set(file: DataFile) -> PairHashes:
    texts = list(set(file.texts()))
    return np.unique(hash_pairs(texts, texts))  # a text is identified by the pair that it forms with itself


def _length_percentiles(texts: Iterable[str]) -> tuple[int, int, int, int]:
    lengths = [len(text) for text in texts]
    shortest, median, upper, longest = np.percentile(lengths, [0, 50, 95, 100], method="inverted_cdf").tolist()
    return int(shortest), int(median), int(upper), int(longest)
