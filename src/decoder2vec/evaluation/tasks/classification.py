"""Classification: accuracy of a logistic regression on frozen vectors. MTEB's few-shot protocol.

In each of ten experiments a classifier is fitted on a few texts of each label and scored on the whole test file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.backbone.threads import map_on_cores
from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.task import (
    SEED,
    Role,
    Task,
    TaskResult,
    TaskVectors,
    check_not_hidden,
    evenly_spaced,
    evenly_spaced_by_label,
    limit_flags,
    read_text_rows,
    to_points,
    unique,
)
from decoder2vec.maths.metrics import mean_interval

N_EXPERIMENTS = 10
_DEFAULT_PER_LABEL = 8
_PER_LABEL = {"tweet-sentiment": 32, "emotion": 16}
"""Training texts of each label in an experiment, for the tasks where MTEB does not use 8."""


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Labelled training texts and labelled test texts."""

    kind: ClassVar[str] = "classification"
    train: list[str]
    train_labels: list[str]
    test: list[str]
    test_labels: list[str]
    per_label: int = _DEFAULT_PER_LABEL
    """Training texts of each label in an experiment."""

    @classmethod
    def read(cls, train: Path, test: Path, name: str, limit: int | None = None) -> Classification:
        """Read two files with the columns text and label."""
        train_rows = [values for _, values in read_text_rows(train, ("text", "label"))]
        test_rows = [values for _, values in read_text_rows(test, ("text", "label"))]
        for file, rows in ((train, train_rows), (test, test_rows)):
            check_not_hidden((label for _, label in rows), file)
            if len({label for _, label in rows}) < 2:
                raise DataFileError(f"{file}: every text has the label {rows[0][1]!r}; two labels or more are needed.")
        per_label = _PER_LABEL.get(name, _DEFAULT_PER_LABEL)
        flags = (
            *limit_flags(limit, len(test_rows), "test texts"),
            *_label_flags(train_rows, test_rows, per_label),
        )
        if limit is not None:
            n_labels = len({label for _, label in train_rows})
            train_rows = evenly_spaced_by_label(train_rows, max(limit, n_labels * per_label))
            test_rows = evenly_spaced(test_rows, limit)
        return cls(
            name=name,
            train=[text for text, _ in train_rows],
            train_labels=[label for _, label in train_rows],
            test=[text for text, _ in test_rows],
            test_labels=[label for _, label in test_rows],
            per_label=per_label,
            flags=flags,
        )

    def training_samples(self) -> list[list[int]]:
        """The training rows of each experiment.

        As in MTEB, the order of the rows is shuffled again for each experiment, always with the same seed, and the
        first rows of each label are taken.
        """
        order, samples = list(range(len(self.train))), []
        for _ in range(N_EXPERIMENTS):
            np.random.RandomState(SEED).shuffle(order)
            taken: Counter[str] = Counter()
            rows = []
            for row in order:
                label = self.train_labels[row]
                if taken[label] < self.per_label:
                    taken[label] += 1
                    rows.append(row)
            samples.append(rows)
        return samples

    def texts(self) -> dict[Role, list[str]]:
        """The test texts and the training texts that are used in an experiment."""
        return {"plain": unique(self.test, [self.train[row] for rows in self.training_samples() for row in rows])}

    def constant_score(self) -> float:
        """The share of the most frequent test label: the accuracy of always predicting it."""
        return to_points(max(Counter(self.test_labels).values()) / len(self.test_labels))

    def score(self, vectors: TaskVectors) -> TaskResult:
        """Accuracy (main score) and macro F1, the means over the experiments."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import f1_score

        test, gold = vectors.rows(self.test), np.asarray(self.test_labels)

        def experiment(rows: list[int]) -> tuple[float, float]:
            """Accuracy and macro F1 of a classifier; the protocol stops it after 100 iterations, converged or not."""
            classifier = LogisticRegression(max_iter=100, random_state=SEED)
            classifier.fit(vectors.rows([self.train[row] for row in rows]), [self.train_labels[row] for row in rows])
            predicted = classifier.predict(test)
            return 100 * float((predicted == gold).mean()), float(f1_score(gold, predicted, average="macro"))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            accuracies, f1s = zip(*map_on_cores(experiment, self.training_samples()), strict=True)
        scores = {
            "accuracy": round(float(np.mean(accuracies)), 4),
            "accuracy_std": round(float(np.std(accuracies)), 4),
            "f1": to_points(float(np.mean(f1s))),
        }
        low, high = mean_interval(np.array(accuracies))
        return TaskResult("accuracy", scores, (round(low, 4), round(high, 4)), {"values": list(accuracies)})


def _label_flags(train: list[tuple[str, ...]], test: list[tuple[str, ...]], per_label: int) -> tuple[str, ...]:
    """Flags for labels with too few training texts, or none."""
    counts = Counter(label for _, label in train)
    rare = sum(count < per_label for count in counts.values())
    unseen = sum(label not in counts for _, label in test)
    flags = [f"{rare} labels have fewer than {per_label} texts to learn from"] if rare else []
    return (*flags, *([f"{unseen} test texts have labels that no training text has"] if unseen else []))
