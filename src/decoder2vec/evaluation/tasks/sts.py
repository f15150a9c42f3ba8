"""Semantic textual similarity: rank correlation of similarities and gold scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.similarity import pairwise_similarities
from decoder2vec.evaluation.tasks.task import (
    PairTask,
    TaskResult,
    TaskVectors,
    check_not_hidden,
    limit_flags,
    to_points,
)
from decoder2vec.maths.metrics import pearson, spearman, spearman_interval
from decoder2vec.text.files import read_pairs


@dataclass(frozen=True, kw_only=True)
class STS(PairTask):
    """Scored pairs: one correlation over all of them; nothing is trained on the scores."""

    kind: ClassVar[str] = "sts"
    gold: list[float]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> STS:
        """Read a file with the columns sentence1, sentence2 and score."""
        pairs = read_pairs(file)
        check_not_hidden((f"{score:g}" for score in pairs.scores), file)
        if len(set(pairs.scores)) < 2:
            raise DataFileError(f"{file}: every score is {pairs.scores[0]:g}; a correlation needs different scores.")
        flags = limit_flags(limit, len(pairs), "pairs")
        pairs = pairs.limit(limit)
        return cls(name=name, left=pairs.left, right=pairs.right, gold=pairs.scores, flags=flags)

    def constant_score(self) -> float:
        """0: a constant has no rank correlation."""
        return 0.0

    def score(self, vectors: TaskVectors) -> TaskResult:
        """Spearman (main score) and Pearson by the encoder's own similarity, and both by the plain cosine."""
        left, right, gold = vectors.rows(self.left), vectors.rows(self.right), np.asarray(self.gold)
        predicted = vectors.pairwise_similarities(left, right)
        cosines = pairwise_similarities(None, left, right)
        scores = {
            "spearman": to_points(spearman(predicted, gold)),
            "pearson": to_points(pearson(predicted, gold)),
            "cosine_spearman": to_points(spearman(cosines, gold)),
            "cosine_pearson": to_points(pearson(cosines, gold)),
        }
        low, high = spearman_interval(predicted, gold)
        items = {"predicted": [float(value) for value in predicted], "gold": list(self.gold)}
        return TaskResult("spearman", scores, (to_points(low), to_points(high)), items)
