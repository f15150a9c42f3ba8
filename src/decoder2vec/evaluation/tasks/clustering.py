"""Clustering: do texts of one label fall into one cluster? MTEB's protocol: mini-batch k-means, V-measure.

MTEB ships its subsets; a file here has none, so ten are drawn, each with half of the texts of every label. They are the
same for every encoder and on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.task import (
    SEED,
    Outcome,
    Role,
    Task,
    Vectors,
    different,
    limited,
    spread_labels,
    text_rows,
)
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.text.files import read_rows

SUBSETS = 10
_BATCH = 500
_COLUMNS = ("text", "sentence", "subject")
"""The first of these that a file has is clustered; of 20 Newsgroups, as in MTEB, the subject line alone."""


@dataclass(frozen=True, kw_only=True)
class Clustering(Task):
    """Labelled texts."""

    kind: ClassVar[str] = "clustering"
    inputs: list[str]
    labels: list[str]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> Clustering:
        """From a file with the columns text (or sentence, or subject) and label."""
        _, first = next(read_rows(file), (0, {"text": "", "label": ""}))
        column = next((known for known in _COLUMNS if known in first), "text")
        rows = [values for _, values in text_rows(file, (column, "label"))]
        count = len({label for _, label in rows})
        if count < 2:
            raise DataFileError(f"{file}: every text has the label {rows[0][1]!r}; clusters need two labels or more.")
        if len(rows) < 2 * count:
            raise DataFileError(
                f"{file}: {len(rows)} texts are too few for {count} clusters; give two texts or more for each label."
            )
        limit = limit and max(limit, 10 * count)
        chosen = spread_labels(rows, limit)
        flags = limited(limit, len(rows), "texts")
        return cls(name=name, inputs=[text for text, _ in chosen], labels=[label for _, label in chosen], flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """All of them."""
        return {"plain": different(self.inputs)}

    def subsets(self) -> list[list[int]]:
        """The rows of each subset."""
        by_label: dict[str, list[int]] = {}
        for row, label in enumerate(self.labels):
            by_label.setdefault(label, []).append(row)
        drawn = []
        for number in range(SUBSETS):
            rng = random.Random(f"{SEED}-{number}")
            halves = [rng.sample(rows, (len(rows) + 1) // 2) for rows in by_label.values()]
            rows = [row for half in halves for row in half]
            rng.shuffle(rows)
            drawn.append(rows)
        return drawn

    def score(self, vectors: Vectors) -> Outcome:
        """V-measure, the mean over the subsets."""
        matrix, labels = vectors.of(self.inputs), np.asarray(self.labels)
        values = [100 * v_measure(matrix[rows], labels[rows]) for rows in map(np.asarray, self.subsets())]
        scores = {"v_measure": round(float(np.mean(values)), 4), "v_measure_std": round(float(np.std(values)), 4)}
        low, high = mean_interval(np.array(values))
        return Outcome("v_measure", scores, (round(low, 4), round(high, 4)), {"values": values})


def v_measure(matrix: object, labels: Sequence[str] | np.ndarray[tuple[int, ...], np.dtype[np.str_]]) -> float:
    """How well k-means finds the labels, k being their number."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    k = len(set(labels))
    means = MiniBatchKMeans(n_clusters=k, batch_size=_BATCH, n_init="auto", random_state=SEED)
    return float(v_measure_score(labels, means.fit(matrix).labels_))
