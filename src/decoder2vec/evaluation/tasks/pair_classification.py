"""Pair classification: is one text a paraphrase of the other? Decided by a threshold on the similarity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.task import (
    Outcome,
    Role,
    Task,
    Vectors,
    different,
    limited,
    points,
    spread,
    text_rows,
)
from decoder2vec.maths.metrics import average_precision, average_precision_interval, best_accuracy, best_f1


@dataclass(frozen=True, kw_only=True)
class PairClassification(Task):
    """Pairs that belong together (1) or do not (0)."""

    kind: ClassVar[str] = "pair_classification"
    left: list[str]
    right: list[str]
    gold: list[int]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> PairClassification:
        """From a file with the columns sentence1, sentence2 and label."""
        rows = text_rows(file, ("sentence1", "sentence2", "label"))
        for line, (_, _, label) in rows:
            if label not in ("0", "1"):
                raise DataFileError(f"{file}, line {line}: the label {label!r} is neither 0 nor 1.")
        if len({label for _, (_, _, label) in rows}) < 2:
            raise DataFileError(f"{file}: every pair has the label {rows[0][1][2]}; both 0 and 1 are needed.")
        limit = limit and max(limit, 2)
        by_label = sorted(rows, key=lambda row: row[1][2])  # so that a few of them have both labels too
        chosen = rows if limit is None else spread(by_label, limit)
        left, right, labels = zip(*(values for _, values in chosen), strict=True)
        flags = limited(limit, len(rows), "pairs")
        return cls(name=name, left=list(left), right=list(right), gold=[int(label) for label in labels], flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """Both sides."""
        return {"plain": different(self.left, self.right)}

    def pairs(self) -> tuple[list[str], list[str]]:
        """All of them."""
        return self.left, self.right

    def score(self, vectors: Vectors) -> Outcome:
        """Average precision is the headline; accuracy and F1 are those of the best threshold."""
        predicted, gold = vectors.pairwise(vectors.of(self.left), vectors.of(self.right)), np.asarray(self.gold)
        scores = {
            "ap": points(average_precision(predicted, gold)),
            "accuracy": points(best_accuracy(predicted, gold)),
            "f1": points(best_f1(predicted, gold)),
        }
        low, high = average_precision_interval(predicted, gold)
        items = {"predicted": [float(value) for value in predicted], "gold": [float(label) for label in self.gold]}
        return Outcome("ap", scores, (points(low), points(high)), items)
