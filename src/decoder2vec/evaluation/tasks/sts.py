"""Semantic textual similarity: do the similarities follow people's scores?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.similarity import similarities
from decoder2vec.evaluation.tasks.task import Outcome, Role, Task, Vectors, different, limited, points
from decoder2vec.maths.metrics import pearson, spearman, spearman_interval
from decoder2vec.text.files import read_pairs


@dataclass(frozen=True, kw_only=True)
class STS(Task):
    """Scored pairs: one rank correlation over all of them, nothing trained on the scores."""

    kind: ClassVar[str] = "sts"
    left: list[str]
    right: list[str]
    gold: list[float]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> STS:
        """From a file with the columns sentence1, sentence2 and score."""
        pairs = read_pairs(file)
        if len(set(pairs.scores)) < 2:
            raise DataFileError(
                f"{file}: every score is {pairs.scores[0]:g}; nothing can follow scores that never change."
            )
        flags = limited(limit, len(pairs), "pairs")
        if flags:
            pairs = read_pairs(file, limit=limit)
        return cls(name=name, left=pairs.left, right=pairs.right, gold=pairs.scores, flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """Both sides."""
        return {"plain": different(self.left, self.right)}

    def pairs(self) -> tuple[list[str], list[str]]:
        """All of them."""
        return self.left, self.right

    def score(self, vectors: Vectors) -> Outcome:
        """Spearman is the headline, by the encoder's own similarity; the plain cosine stands beside it."""
        left, right, gold = vectors.of(self.left), vectors.of(self.right), np.asarray(self.gold)
        predicted = vectors.pairwise(left, right)
        cosines = similarities(None, left, right)
        scores = {
            "spearman": points(spearman(predicted, gold)),
            "pearson": points(pearson(predicted, gold)),
            "cosine_spearman": points(spearman(cosines, gold)),
            "cosine_pearson": points(pearson(cosines, gold)),
        }
        low, high = spearman_interval(predicted, gold)
        items = {"predicted": [float(value) for value in predicted], "gold": list(self.gold)}
        return Outcome("spearman", scores, (points(low), points(high)), items)
