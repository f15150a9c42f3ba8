"""Triples from a file: a text, one that belongs to it, and one that looks as if it did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.text.rows import DataRow, read_data


@dataclass(frozen=True)
class Triples:
    """Rows of anchor, positive and hard negative."""

    name: str
    rows: list[tuple[str, str, str]]
    left_out: int = 0
    """Rows that do not hold three different texts: they say the same about every layer, or nothing."""

    def __len__(self) -> int:
        return len(self.rows)

    def drawn(self, count: int, seed: int) -> Triples:
        """So many of them by chance, in an order made by chance; all of them where there are fewer."""
        order = np.random.default_rng(seed).permutation(len(self.rows))[:count]
        return Triples(self.name, [self.rows[number] for number in order], self.left_out)

    def texts(self) -> list[str]:
        """Every different text."""
        return list(dict.fromkeys(text for row in self.rows for text in row))


def read_triples(source: str | Path) -> Triples:
    """Columns anchor, positive, negative, or records; of several positives or negatives the first is taken."""
    file = read_data(source)
    if file.kind not in ("triplets", "records"):
        raise DataFileError(f"{source} holds {file.kind}; give triples: columns anchor, positive and negative.")
    rows = [triple for row in file.rows if (triple := _triple(row))]
    if not rows:
        raise DataFileError(f"{source} has no row of three different texts: anchor, positive and negative.")
    return Triples(file.source.name.split(".")[0], rows, len(file.rows) - len(rows))


def _triple(row: DataRow) -> tuple[str, str, str] | None:
    positive = next((text for text in row.beside if text.strip()), "")
    negative = next(iter(row.against), "")
    triple = (row.first, positive, negative)
    whole = all(text.strip() for text in triple) and len(set(triple)) == 3
    return triple if whole else None
