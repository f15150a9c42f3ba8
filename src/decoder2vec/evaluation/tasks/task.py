"""What a task is: texts to embed, each in a role, and a score for the vectors they got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.similarity import Matrix, similarities, similarity_table
from decoder2vec.text.files import read_rows

Role = Literal["plain", "query", "document"]
"""Texts of a pair, a class or a cluster are plain; an encoder may have prompts of its own for the other two."""

Item = TypeVar("Item")

SEED = 42
"""MTEB's: its draws and clusters are the same here."""


@dataclass(frozen=True)
class Outcome:
    """What a task says of an encoder, in points (0-100)."""

    metric: str
    """The name of the one number that stands for the task."""
    scores: dict[str, float]
    """Every number, the headline among them."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the headline."""
    items: dict[str, list[float]]
    """What is resampled to compare two encoders: `values`, whose mean is the score, or `predicted` and `gold`."""
    flags: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The headline."""
        return self.scores[self.metric]


class Vectors:
    """The vectors of a task's texts, by role, and the encoder's own idea of similarity."""

    def __init__(self, rows: Mapping[Role, tuple[Sequence[str], Matrix]], encoder: Any = None) -> None:
        self._matrices = {role: matrix for role, (_, matrix) in rows.items()}
        self._places = {role: {text: row for row, text in enumerate(texts)} for role, (texts, _) in rows.items()}
        self._encoder = encoder

    @cached_property
    def _words(self) -> Any:
        """All documents, where the encoder finds them by their words and not by vectors."""
        return self._encoder.index_of(list(self._places["document"])) if ranks_by_words(self._encoder) else None

    def of(self, texts: Sequence[str], role: Role = "plain") -> Matrix:
        """[n, dim], a row for each text."""
        places, matrix = self._places[role], self._matrices[role]
        rows = np.array([places[text] for text in texts], np.intp)
        whole = len(rows) == matrix.shape[0] and bool((rows == np.arange(len(rows))).all())
        return matrix if whole else matrix[rows]

    def pairwise(self, left: Matrix, right: Matrix) -> Any:
        """[n] similarities, row by row."""
        return similarities(self._encoder, left, right)

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> Any:
        """[query, document] similarities, or what stands for them where documents are found by their words."""
        if self._words is None:
            return similarity_table(self._encoder, self.of(queries, "query"), self.of(documents, "document"))
        return self._words.scores(queries)[:, [self._places["document"][text] for text in documents]]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task of some kind; what it holds is all that decides its score, apart from the encoder."""

    kind: ClassVar[str]
    name: str
    flags: tuple[str, ...] = field(default=())
    """What a reader of the score should know about the data."""

    @abstractmethod
    def texts(self) -> dict[Role, list[str]]:
        """Every different text that has to be embedded, by role."""

    def pairs(self) -> tuple[list[str], list[str]]:
        """The pairs whose relation is asked for: an encoder trained on them has seen the answers."""
        return [], []

    @abstractmethod
    def score(self, vectors: Vectors) -> Outcome:
        """Measure the vectors."""

    def digest(self) -> str:
        """Names the data and the protocol: a score stands for as long as this does."""
        return fingerprint(self.kind, asdict(self))


def ranks_by_words(encoder: object) -> bool:
    """Does it rank documents without vectors, as BM25 does?"""
    return hasattr(encoder, "index_of")


def different(*lists: Sequence[str]) -> list[str]:
    """Every different text, in order of appearance."""
    return list(dict.fromkeys(text for texts in lists for text in texts))


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """So many items, evenly spread over all."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, limit - 1))] for i in range(limit)]


def spread_labels(rows: Sequence[tuple[str, ...]], limit: int | None) -> list[tuple[str, ...]]:
    """About so many rows of (text, label), as many of every label as there are."""
    if limit is None or limit >= len(rows):
        return list(rows)
    by_label: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        by_label.setdefault(row[1], []).append(row)
    share = max(1, limit // len(by_label))
    return [row for group in by_label.values() for row in spread(group, share)]


def limited(limit: int | None, whole: int, what: str) -> tuple[str, ...]:
    """A flag, where not all of it was used."""
    return () if limit is None or limit >= whole else (f"only {limit} of {whole} {what}",)


def text_rows(file: Path, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line number and the named columns of every row; a column or value that is missing is an error that names it."""
    rows = []
    for line, row in read_rows(file):
        if missing := [name for name in columns if name not in row]:
            has = ", ".join(map(str, row))
            raise DataFileError(f"{file} has no column {missing[0]!r}; it has: {has}. Rename yours to {missing[0]}.")
        values = tuple(str(row[name]) if isinstance(row[name], int | float) else row[name] for name in columns)
        if not all(isinstance(value, str) for value in values):
            raise DataFileError(f"{file}, line {line}: one of {', '.join(columns)} is missing or not a text.")
        rows.append((line, values))
    if not rows:
        raise DataFileError(f"{file} holds no usable row.")
    return rows


def points(value: float) -> float:
    """A share as points, without digits that mean nothing."""
    return round(100 * float(value), 4)
