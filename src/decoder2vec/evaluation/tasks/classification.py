"""Classification: what does a logistic regression learn from a few frozen vectors? MTEB's few-shot protocol.

Ten draws of a few texts for each label; a classifier is fitted on each and tried on the whole test file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.similarity import Matrix
from decoder2vec.evaluation.tasks.task import (
    SEED,
    Outcome,
    Role,
    Task,
    Vectors,
    different,
    limited,
    points,
    spread,
    spread_labels,
    text_rows,
)
from decoder2vec.maths.metrics import mean_interval

DRAWS = 10
_PER_LABEL = {"tweet-sentiment": 32, "emotion": 16}
"""How many texts of each label a draw has, where MTEB does not take 8."""


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Labelled texts to learn from, and others to try it on."""

    kind: ClassVar[str] = "classification"
    train: list[str]
    train_labels: list[str]
    test: list[str]
    test_labels: list[str]
    per_label: int = 8

    @classmethod
    def read(cls, train: Path, test: Path, name: str, limit: int | None = None) -> Classification:
        """From two files with the columns text and label."""
        learnt = [values for _, values in text_rows(train, ("text", "label"))]
        tried = [values for _, values in text_rows(test, ("text", "label"))]
        for file, rows in ((train, learnt), (test, tried)):
            if len({label for _, label in rows}) < 2:
                raise DataFileError(f"{file}: every text has the label {rows[0][1]!r}; two labels or more are needed.")
        per_label = _PER_LABEL.get(name, 8)
        flags = (*limited(limit, len(tried), "test texts"), *_scarce(learnt, tried, per_label))
        if limit is not None:
            labels = len({label for _, label in learnt})
            learnt, tried = spread_labels(learnt, max(limit, labels * per_label)), spread(tried, limit)
        return cls(
            name=name,
            train=[text for text, _ in learnt],
            train_labels=[label for _, label in learnt],
            test=[text for text, _ in tried],
            test_labels=[label for _, label in tried],
            per_label=per_label,
            flags=flags,
        )

    def draws(self) -> list[list[int]]:
        """The rows of each draw: the first few of every label in an order that is shuffled on and on, as MTEB does."""
        order, drawn = list(range(len(self.train))), []
        for _ in range(DRAWS):
            np.random.RandomState(SEED).shuffle(order)
            taken: Counter[str] = Counter()
            rows = []
            for row in order:
                label = self.train_labels[row]
                if taken[label] < self.per_label:
                    taken[label] += 1
                    rows.append(row)
            drawn.append(rows)
        return drawn

    def texts(self) -> dict[Role, list[str]]:
        """The test texts and, of the others, those that are drawn."""
        return {"plain": different(self.test, [self.train[row] for rows in self.draws() for row in rows])}

    def score(self, vectors: Vectors) -> Outcome:
        """Accuracy, the mean over the draws; F1 is the mean over labels."""
        from sklearn.metrics import f1_score

        test, truth = vectors.of(self.test), np.asarray(self.test_labels)
        accuracies, f1s = [], []
        for rows in self.draws():
            matrix = vectors.of([self.train[row] for row in rows])
            found = predict(matrix, [self.train_labels[row] for row in rows], test)
            accuracies.append(100 * float((found == truth).mean()))
            f1s.append(float(f1_score(truth, found, average="macro")))
        scores = {
            "accuracy": round(float(np.mean(accuracies)), 4),
            "accuracy_std": round(float(np.std(accuracies)), 4),
            "f1": points(float(np.mean(f1s))),
        }
        low, high = mean_interval(np.array(accuracies))
        return Outcome("accuracy", scores, (round(low, 4), round(high, 4)), {"values": accuracies})


def predict(train: Matrix, labels: list[str], test: Matrix) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """The labels that a logistic regression gives; that it stops after 100 steps is the protocol, not a fault."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=100, random_state=SEED).fit(train, labels)
    return np.asarray(model.predict(test))


def _scarce(train: list[tuple[str, ...]], test: list[tuple[str, ...]], per_label: int) -> tuple[str, ...]:
    """Flags for labels that have too few texts, or none, to learn from."""
    counts = Counter(label for _, label in train)
    few = sum(count < per_label for count in counts.values())
    strange = sum(label not in counts for _, label in test)
    flags = [f"{few} labels have fewer than {per_label} texts to learn from"] if few else []
    return (*flags, *([f"{strange} test texts have labels that no training text has"] if strange else []))
