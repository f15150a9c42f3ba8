"""Labels: which relation has the first text of a pair to the second? One linear score for each label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from decoder2vec.errors import InputError
from decoder2vec.training.context import InputSpec, PairContext, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.labelled_pairs import LabelledPairs
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Metric, Objective, ObjectiveConfig

_PAIRS_PER_PASS = 4096


@dataclass(frozen=True)
class LabelsConfig(ObjectiveConfig):
    """Settings of `LabelsObjective`."""

    name: str = "labels"
    balance: float = 1.0
    """How much rare labels are weighted: 1 gives every label the same weight in sum, 0 every pair the same."""

    def __post_init__(self) -> None:
        if not 0 <= self.balance < math.inf:
            raise InputError("balance must be a number of 0 or more, usually up to 1.")


class LabelsObjective(Objective[LabelsConfig, PairContext]):
    """Ordered pairs with a label each, by weighted cross-entropy."""

    names = ("labels",)
    config_class = LabelsConfig
    needs = "labelled_pairs"
    stage = "labels"
    reads = (Reads.PAIRS,)
    unreadable = "classifies pairs of texts that are read together; use the recipe rerank"
    needs_dev = False

    def __init__(self, config: LabelsConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if data.labelled is None or data.labelled_dev is None:
            raise InputError("labels learns from labelled pairs; give some, with the columns text1, text2 and label.")
        self.train, self.dev = data.labelled, data.labelled_dev
        self.labels = tuple(self.train.counts())
        """All labels, sorted: the rows of the head."""
        if len(self.labels) < 2:
            raise InputError(
                f"All labels are {self.labels[0]!r}: there is nothing to learn; give pairs of others, too."
            )
        for pairs in (self.dev, data.labelled_test):
            if unseen := sorted(set(pairs.labels if pairs else ()) - set(self.labels)):
                raise InputError(f"The label {unseen[0]!r} is not in the training data; add pairs, or leave it out.")

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """The number of training pairs."""
        return len(data.labelled) if data.labelled else None

    @property
    def texts(self) -> list[str]:
        """Texts of all pairs."""
        return list(dict.fromkeys([*self.train.texts(), *self.dev.texts()]))

    def __len__(self) -> int:
        return len(self.train)

    def pairs(self) -> list[tuple[str, str]]:
        """Every pair that is read, as (query, document): the first text is read first, as a document is."""
        return [pair for part in (self.train, self.dev) for pair in zip(part.second, part.first, strict=True)]

    def label_weights(self) -> NDArray[np.float32]:
        """[labels] weights, with a mean of 1 over the training pairs."""
        counts = np.array(list(self.train.counts().values()), np.float64)
        weights = counts**-self.config.balance
        return np.asarray(weights * counts.sum() / (weights * counts).sum(), np.float32)

    def loss(self, context: PairContext) -> Loss:
        """Cross-entropy of the label, weighted by label."""
        weights = torch.from_numpy(self.label_weights()).to(context.device)
        targets = torch.tensor([self.labels.index(label) for label in self.train.labels], device=context.device)
        rows_of_pairs = context.pair_rows(self.train.second, self.train.first)

        def loss(rows: Rows) -> Tensor:
            logits = context.logits(rows_of_pairs[rows].tolist())
            chosen = targets[torch.from_numpy(rows).to(context.device)]
            return functional.cross_entropy(logits, chosen, weights, reduction="none").mean()

        return loss

    def metric(self, correlation: str) -> Metric:
        """The macro F1 on dev pairs."""
        return Metric("macro F1 on dev in %")

    def dev_metric(self, context: PairContext) -> Callable[[], float]:
        """Macro F1 on the dev pairs, in percent."""
        rows = context.pair_rows(self.dev.second, self.dev.first).tolist()

        def score() -> float:
            parts = [rows[start : start + _PAIRS_PER_PASS] for start in range(0, len(rows), _PAIRS_PER_PASS)]
            logits = torch.cat([context.logits(part) for part in parts]).cpu().numpy()
            if not np.isfinite(logits).all():
                return math.nan
            return float(measure_labels(self.dev, self.labels, logits)["macro f1"])

        return score

    def resume_key(self) -> list[Any]:
        """The labelled pairs."""
        return [vars(self.train), vars(self.dev)]


def measure_labels(pairs: LabelledPairs, labels: Sequence[str], scores: NDArray[Any]) -> dict[str, Any]:
    """Accuracy, macro F1 over the labels that the pairs have, and the F1 of each, in percent.

    Args:
        pairs: The pairs with their known labels.
        labels: The labels of the columns.
        scores: [pairs, labels] scores or probabilities; the highest is predicted.
    """
    predicted = np.array(labels)[np.asarray(scores).argmax(axis=1)]
    known = np.array(pairs.labels)
    by_label = {}
    for label in pairs.counts():
        n_both = int(((predicted == label) & (known == label)).sum())
        by_label[label] = 200 * n_both / int((predicted == label).sum() + (known == label).sum())
    return {
        "accuracy": round(100 * float((predicted == known).mean()), 2),
        "macro f1": round(float(np.mean([*by_label.values()])), 2),
        "f1": {label: round(f1, 2) for label, f1 in by_label.items()},
    }
