"""Quality of predicted relations: precision, recall and F1 of related pairs, with NONE left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from decoder2vec.relations.mentions import Pair


class LabelScores(NamedTuple):
    """Scores of one label, or of all labels together."""

    precision: float
    """Share of predicted relations that are right."""
    recall: float
    """Share of known relations that are predicted."""
    f1: float
    support: int
    """Number of known relations."""


@dataclass(frozen=True)
class RelationScores:
    """How good predicted relations are, and what they cost."""

    overall: LabelScores
    """Of all labels together (micro average). A relation predicted with the wrong label is wrong and missed."""
    labels: dict[str, LabelScores]
    """By label."""
    accuracy: float
    """Share of all pairs within documents whose label is right, NONE included."""
    k: int
    recall_at_k: float
    """Share of known relations that were retrieved: the upper limit of recall."""
    n_classified: int
    """Pairs that were classified."""
    n_pairs: int
    """All pairs within documents."""

    @property
    def reduction_ratio(self) -> float:
        """Share of all pairs that were not classified."""
        return 1 - self.n_classified / self.n_pairs if self.n_pairs else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain data."""
        labels = {label: scores._asdict() for label, scores in self.labels.items()}
        return {**asdict(self), "overall": self.overall._asdict(), "labels": labels, "saved": self.reduction_ratio}


def score_labels(gold: Mapping[Pair, str], predicted: Mapping[Pair, str]) -> tuple[LabelScores, dict[str, LabelScores]]:
    """Return the scores of all labels together and of each; pairs that are in neither mapping do not matter.

    Args:
        gold: The label of each related pair.
        predicted: The label of each pair predicted to be related.
    """
    correct = Counter(label for pair, label in predicted.items() if gold.get(pair) == label)
    n_predicted, n_gold = Counter(predicted.values()), Counter(gold.values())
    by_label = {
        label: _label_scores(correct[label], n_predicted[label], n_gold[label])
        for label in sorted({*n_predicted, *n_gold})
    }
    return _label_scores(correct.total(), len(predicted), len(gold)), by_label


def _label_scores(n_correct: int, n_predicted: int, n_gold: int) -> LabelScores:
    precision = n_correct / n_predicted if n_predicted else 0.0
    recall = n_correct / n_gold if n_gold else 0.0
    return LabelScores(precision, recall, 2 * n_correct / max(1, n_predicted + n_gold), n_gold)


def accuracy(gold: Mapping[Pair, str], predicted: Mapping[Pair, str], n_pairs: int) -> float:
    """Share of pairs whose label is right, where pairs that are in neither mapping are NONE in both."""
    n_wrong = sum(gold.get(pair) != predicted.get(pair) for pair in gold.keys() | predicted.keys())
    return 1 - n_wrong / n_pairs if n_pairs else 1.0
