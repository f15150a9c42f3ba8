"""Clustering: compare k-means clusters with labels. MTEB's protocol: mini-batch k-means, V-measure.

MTEB ships subsets with its data. A file here has none, so ten are sampled, each with half of the texts of every label.
They are the same for every encoder and on every machine.
"""

from __future__ import annotations

import random
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
    evenly_spaced_by_label,
    limit_flags,
    read_text_rows,
    unique,
)
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.text.files import read_rows

N_SUBSETS = 10
_BATCH_SIZE = 500
_TEXT_COLUMNS = ("text", "sentence", "subject")
"""The first of these columns that a file has is clustered; for 20 Newsgroups that is the subject line, as in MTEB."""


@dataclass(frozen=True, kw_only=True)
class Clustering(Task):
    """Labelled texts."""

    kind: ClassVar[str] = "clustering"
    inputs: list[str]
    labels: list[str]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> Clustering:
        """Read a file with the columns text (or sentence, or subject) and label."""
        _, first_row = next(read_rows(file), (0, {"text": "", "label": ""}))
        column = next((column for column in _TEXT_COLUMNS if column in first_row), "text")
        rows = [values for _, values in read_text_rows(file, (column, "label"))]
        check_not_hidden((label for _, label in rows), file)
        n_labels = len({label for _, label in rows})
        if n_labels < 2:
            raise DataFileError(
                f"{file}: every text has the label {rows[0][1]!r}; clustering needs two labels or more."
            )
        if len(rows) < 2 * n_labels:
            raise DataFileError(
                f"{file}: {len(rows)} texts are too few for {n_labels} clusters; give two texts or more for each label."
            )
        limit = limit and max(limit, 10 * n_labels)
        chosen = evenly_spaced_by_label(rows, limit)
        flags = limit_flags(limit, len(rows), "texts")
        return cls(name=name, inputs=[text for text, _ in chosen], labels=[label for _, label in chosen], flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """All texts."""
        return {"plain": unique(self.inputs)}

    def subsets(self) -> list[list[int]]:
        """The row indices of each subset."""
        rows_of_label: dict[str, list[int]] = {}
        for row, label in enumerate(self.labels):
            rows_of_label.setdefault(label, []).append(row)
        subsets = []
        for subset in range(N_SUBSETS):
            rng = random.Random(f"{SEED}-{subset}")
            halves = [rng.sample(rows, (len(rows) + 1) // 2) for rows in rows_of_label.values()]
            rows = [row for half in halves for row in half]
            rng.shuffle(rows)
            subsets.append(rows)
        return subsets

    def constant_score(self) -> float:
        """0: the V-measure of one cluster."""
        return 0.0

    def score(self, vectors: TaskVectors) -> TaskResult:
        """V-measure, the mean over the subsets."""
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.metrics import v_measure_score

        matrix, labels = vectors.rows(self.inputs), np.asarray(self.labels)

        def v_measure(rows: list[int]) -> float:
            """V-measure of k-means clusters and labels of a subset, with as many clusters as labels."""
            clusters = len(set(labels[rows]))
            kmeans = MiniBatchKMeans(clusters, batch_size=_BATCH_SIZE, n_init="auto", random_state=SEED)
            return 100 * float(v_measure_score(labels[rows], kmeans.fit(matrix[rows]).labels_))

        values = map_on_cores(v_measure, self.subsets())
        scores = {"v_measure": round(float(np.mean(values)), 4), "v_measure_std": round(float(np.std(values)), 4)}
        low, high = mean_interval(np.array(values))
        return TaskResult("v_measure", scores, (round(low, 4), round(high, 4)), {"values": values})
