"""Pair classification: decide by a threshold on the similarity whether two texts belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.task import (
    PairTask,
    TaskResult,
    TaskVectors,
    check_not_hidden,
    evenly_spaced,
    limit_flags,
    read_text_rows,
    to_points,
)
from decoder2vec.maths.metrics import average_precision, average_precision_interval, best_accuracy, best_f1


@dataclass(frozen=True, kw_only=True)
class PairClassification(PairTask):
    """Pairs with the label 1 (belong together) or 0."""

    kind: ClassVar[str] = "pair_classification"
    gold: list[int]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> PairClassification:
        """Read a file with the columns sentence1, sentence2 and label."""
        rows = read_text_rows(file, ("sentence1", "sentence2", "label"))
        check_not_hidden((label for _, (_, _, label) in rows), file)
        for line, (_, _, label) in rows:
            if label not in ("0", "1"):
                raise DataFileError(f"{file}, line {line}: the label {label!r} is neither 0 nor 1.")
        if len({label for _, (_, _, label) in rows}) < 2:
            raise DataFileError(f"{file}: every pair has the label {rows[0][1][2]}; both 0 and 1 are needed.")
        limit = limit and max(limit, 2)
        by_label = sorted(rows, key=lambda row: row[1][2])  # so that a small sample has both labels
        chosen = rows if limit is None else evenly_spaced(by_label, limit)
        left, right, labels = zip(*(values for _, values in chosen), strict=True)
        flags = limit_flags(limit, len(rows), "pairs")
        return cls(name=name, left=list(left), right=list(right), gold=[int(label) for label in labels], flags=flags)

    def constant_score(self) -> float:
        """The share of positive pairs: the average precision of equal similarities."""
        return to_points(float(np.mean(self.gold)))

    def score(self, vectors: TaskVectors) -> TaskResult:
        """Average precision (main score), and accuracy and F1 at the best threshold."""
        left, right, gold = vectors.rows(self.left), vectors.rows(self.right), np.asarray(self.gold)
        predicted = vectors.pairwise_similarities(left, right)
        scores = {
            "ap": to_points(average_precision(predicted, gold)),
            "accuracy": to_points(best_accuracy(predicted, gold)),
            "f1": to_points(best_f1(predicted, gold)),
        }
        low, high = average_precision_interval(predicted, gold)
        items = {"predicted": [float(value) for value in predicted], "gold": [float(label) for label in self.gold]}
        return TaskResult("ap", scores, (to_points(low), to_points(high)), items)
