"""Base class of evaluation tasks: the texts that a task needs encoded, by role, and the score of their vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.similarity import Matrix, pairwise_similarities, similarity_matrix
from decoder2vec.text.files import read_rows

Role = Literal["plain", "query", "document"]
"""Texts of pairs, classes and clusters are plain; an encoder may have separate prompts for queries and documents."""

Item = TypeVar("Item")

_HIDDEN_LABELS = frozenset({"-1", "-1.0", "", "?", "nan", "none", "null", "hidden", "unknown"})
"""What stands for a label that is not published."""

SEED = 42
"""MTEB's seed, so that samples and clusters are those of MTEB."""


@dataclass(frozen=True)
class TaskResult:
    """The scores of an encoder on a task, in points (0-100)."""

    metric: str
    """Name of the main score."""
    scores: dict[str, float]
    """Every score by name, the main one included."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the main score."""
    items: dict[str, list[float]]
    """What is resampled to compare two encoders: `values`, whose mean is the score, or `predicted` and `gold`."""
    flags: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The main score."""
        return self.scores[self.metric]


class TaskVectors:
    """The vectors of a task's texts by role, compared by the encoder's own similarity where it has one.

    Args:
        rows: For each role its texts and their [texts, dim] vectors. An encoder that ranks documents lexically needs
            no vectors for queries and documents.
        encoder: The encoder, for its `similarity`, `similarity_pairwise` or `build_index`. None: cosines.
    """

    def __init__(self, rows: Mapping[Role, tuple[Sequence[str], Matrix]], encoder: Any = None) -> None:
        self._matrices = {role: matrix for role, (_, matrix) in rows.items()}
        self._row_of = {role: {text: row for row, text in enumerate(texts)} for role, (texts, _) in rows.items()}
        self._encoder = encoder

    def rows(self, texts: Sequence[str], role: Role = "plain") -> Matrix:
        """[texts, dim] vectors of these texts."""
        row_of, matrix = self._row_of[role], self._matrices[role]
        rows = np.array([row_of[text] for text in texts], np.intp)
        unchanged = len(rows) == matrix.shape[0] and bool((rows == np.arange(len(rows))).all())
        return matrix if unchanged else matrix[rows]

    def pairwise_similarities(self, left: Matrix, right: Matrix) -> Any:
        """[n] similarities of corresponding rows."""
        return pairwise_similarities(self._encoder, left, right)

    def score_matrix(self, queries: Sequence[str], documents: Sequence[str]) -> Any:
        """[queries, documents] similarities, or lexical scores if the encoder ranks documents lexically."""
        if self._lexical_index is None:
            return similarity_matrix(self._encoder, self.rows(queries, "query"), self.rows(documents, "document"))
        return self._lexical_index.scores(queries)[:, [self._row_of["document"][text] for text in documents]]

    @cached_property
    def _lexical_index(self) -> Any:
        """An index of all documents if the encoder ranks them lexically, else None."""
        return self._encoder.build_index(list(self._row_of["document"])) if ranks_lexically(self._encoder) else None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task of some kind. Its fields are all that the score depends on, apart from the encoder."""

    kind: ClassVar[str]
    name: str
    flags: tuple[str, ...] = field(default=())
    """Remarks about the data that a reader of the score should know."""

    @abstractmethod
    def texts(self) -> dict[Role, list[str]]:
        """The unique texts to encode, by role."""

    def gold_pairs(self) -> tuple[list[str], list[str]]:
        """Left and right texts of the pairs whose relation is scored, to warn if an encoder was trained on them."""
        return [], []

    @abstractmethod
    def score(self, vectors: TaskVectors) -> TaskResult:
        """Score the vectors of the task's texts."""

    def constant_score(self) -> float:
        """The main score of a constant prediction, which knows nothing of the texts: what a score must beat."""
        equal: dict[Role, tuple[Sequence[str], Matrix]] = {
            role: (texts, np.ones((len(texts), 1), np.float32)) for role, texts in self.texts().items()
        }
        return self.score(TaskVectors(equal)).score

    def digest(self) -> str:
        """Hash of the data and the protocol; a result stays valid as long as it does not change.

        Field names and the wording of flags are part of it: changing them makes every finished result run again.
        """
        return fingerprint(self.kind, vars(self))


@dataclass(frozen=True, kw_only=True)
class PairTask(Task):
    """A task on pairs of texts."""

    left: list[str]
    right: list[str]

    def texts(self) -> dict[Role, list[str]]:
        """The texts of both sides."""
        return {"plain": unique(self.left, self.right)}

    def gold_pairs(self) -> tuple[list[str], list[str]]:
        """All pairs."""
        return self.left, self.right


def ranks_lexically(encoder: object) -> bool:
    """Whether the encoder ranks documents by their words instead of vectors, as BM25 does."""
    return hasattr(encoder, "build_index")


def unique(*lists: Sequence[str]) -> list[str]:
    """Unique texts of all lists, in order of appearance."""
    return list(dict.fromkeys(text for texts in lists for text in texts))


def evenly_spaced(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` items, evenly spaced over the sequence."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, limit - 1))] for i in range(limit)]


def evenly_spaced_by_label(rows: Sequence[tuple[str, ...]], limit: int | None) -> list[tuple[str, ...]]:
    """About `limit` rows of (text, label), the same number of every label."""
    if limit is None or limit >= len(rows):
        return list(rows)
    by_label: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        by_label.setdefault(row[1], []).append(row)
    per_label = max(1, limit // len(by_label))
    return [row for group in by_label.values() for row in evenly_spaced(group, per_label)]


def limit_flags(limit: int | None, total: int, what: str) -> tuple[str, ...]:
    """A flag if a limit left out part of the data, else none."""
    return () if limit is None or limit >= total else (f"only {limit} of {total} {what}",)


def read_text_rows(file: Path, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line number and values of the named columns of every row; a missing column or value is an error."""
    rows = []
    for line, row in read_rows(file):
        if missing := [name for name in columns if name not in row]:
            present = ", ".join(map(str, row))
            raise DataFileError(
                f"{file} has no column {missing[0]!r}; it has: {present}. Rename your column to {missing[0]}."
            )
        values = tuple(str(row[name]) if isinstance(row[name], int | float) else row[name] for name in columns)
        if not all(isinstance(value, str) for value in values):
            raise DataFileError(f"{file}, line {line}: one of {', '.join(columns)} is missing or not a text.")
        rows.append((line, values))
    if not rows:
        raise DataFileError(f"{file} has no usable row.")
    return rows


def check_not_hidden(labels: Iterable[object], file: Path) -> None:
    """Raise if every label is a placeholder, as in public copies of test splits whose labels are kept secret.

    A score on them would be the share of one answer: a model that always gives it would have 100 points.
    """
    values = {str(label).strip().lower() for label in labels}
    if values and values <= _HIDDEN_LABELS:
        raise DataFileError(
            f"{file}: every label is {min(values)!r}, so the labels of this split are hidden and a score would mean "
            "nothing; use a split that has labels, such as dev."
        )


def to_points(value: float) -> float:
    """A score between 0 and 1 in points, with 4 decimals."""
    return round(100 * float(value), 4)
