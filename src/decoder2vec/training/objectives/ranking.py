"""Ranking: the positive of a query must score above hard negatives of that query (softmax over a group)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import margin_mse, ranking_loss
from decoder2vec.maths.ranking import document_ranks, ndcg, reciprocal_rank
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.context import InputSpec, PairContext, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Metric, Objective, ObjectiveConfig

_CUTOFF = 10


@dataclass(frozen=True)
class RankingConfig(ObjectiveConfig):
    """Settings of `RankingObjective`."""

    name: str = "ranking"
    negatives: int = 0
    """Negatives of a query in a step, drawn anew each time; 0: all."""
    margins: float = 1.0
    """Weight of MarginMSE, where the data have scores of a teacher."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> ObjectiveConfig:
        """The settings; unlike elsewhere the name is `ranking` by default."""
        return super().from_table({"name": "ranking", **table}, where)

    def __post_init__(self) -> None:
        if self.negatives < 0 or not 0 <= self.margins < math.inf:
            raise InputError("negatives must be 0 or more, and margins, a weight, a number of 0 or more.")


class RankingObjective(Objective[RankingConfig, PairContext]):
    """Queries, each with a positive and negatives of its own, by cross-entropy, and by the margins of a teacher."""

    names = ("ranking",)
    config_class = RankingConfig
    needs = "groups"
    stage = "ranking"
    labels: tuple[str, ...] = ()
    """It learns one score."""
    reads = (Reads.PAIRS,)
    unreadable = "scores pairs of a query and a document; use the recipe rerank"

    def __init__(self, config: RankingConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        examples = data.contrastive
        if examples is None:
            raise InputError("ranking learns from queries with a positive and negatives; give some, as triplets.")
        has_negatives = (examples.negatives >= 0).any(axis=1)
        if not has_negatives.any():
            raise InputError("ranking learns from hard negatives, and no query has one; mine some: d2v data mine.")
        self.examples = examples
        self.rows = np.flatnonzero(has_negatives)
        """Examples that are learned from."""

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """The number of queries with a positive."""
        return len(data.contrastive) if data.contrastive else None

    @property
    def texts(self) -> list[str]:
        """Texts of all examples."""
        return self.examples.texts

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> list[tuple[str, str]]:
        """Every pair (query, document) that is scored in training and on dev."""
        texts, groups = self.examples.texts, self._groups(np.arange(len(self)))
        anchors = self.examples.anchors[self.rows]
        dev = [pair for file in self.data.dev for pair in zip(file.left, file.right, strict=True)]
        learned = [
            (texts[anchor], texts[document])
            for anchor, group in zip(anchors, groups, strict=True)
            for document in group
            if document >= 0
        ]
        return learned + dev

    def _groups(self, rows: Rows) -> Rows:
        """[queries, 1 + negatives] documents of some examples, the positive first; -1 where there are fewer."""
        examples = self.rows[rows]
        return np.column_stack([self.examples.positives[examples], self.examples.negatives[examples]])

    def loss(self, context: PairContext) -> Loss:
        """Cross-entropy of the positives, plus MarginMSE where a teacher gave scores."""
        texts, scores = self.examples.texts, self.examples.scores
        anchors = self.examples.anchors[self.rows]

        def loss(rows: Rows) -> Tensor:
            groups = self._groups(rows)
            targets = np.full(groups.shape, np.nan, np.float32) if scores is None else scores[self.rows[rows]]
            if self.config.negatives:
                groups, targets = self._draw(groups, targets)
            present = groups >= 0
            queries = np.broadcast_to(anchors[rows][:, None], groups.shape)[present]
            pairs = context.pair_rows([texts[i] for i in queries], [texts[i] for i in groups[present]])
            missing = torch.from_numpy(~present).to(context.device)
            predicted = torch.zeros(groups.shape, device=context.device)
            predicted = predicted.masked_scatter(~missing, context.score(pairs.tolist()))
            total = ranking_loss(predicted, missing)
            if scores is None or not self.config.margins:
                return total
            teacher = torch.from_numpy(targets).to(context.device).masked_fill(missing, torch.nan)
            return total + self.config.margins * margin_mse(predicted, teacher)

        return loss

    def _draw(self, groups: Rows, targets: Any) -> tuple[Rows, Any]:
        """The positives, and as many negatives of each query as the settings say, at random."""
        keys = torch.rand(groups.shape).numpy()
        keys[groups < 0] = 2  # those that are missing come last
        keys[:, 0] = -1  # the positive stays first
        order = np.argsort(keys, axis=1, kind="stable")[:, : 1 + self.config.negatives]
        return np.take_along_axis(groups, order, axis=1), np.take_along_axis(targets, order, axis=1)

    def dev_metric(self, context: PairContext) -> Callable[[], float] | None:
        """Mean nDCG@10 over the queries of the dev files, in points; None if no query has documents to be ranked."""
        files = [pairs for pairs in self.data.dev if rankable_queries(pairs)]
        if not files:
            return None
        return lambda: float(np.mean([measure_ranking(pairs, context.predict(pairs))["ndcg@10"] for pairs in files]))

    def metric(self, correlation: str) -> Metric:
        """NDCG@10, or the correlation where dev pairs rank nothing."""
        ranks = any(rankable_queries(pairs) for pairs in self.data.dev)
        return Metric("nDCG@10 on dev x 100") if ranks else super().metric(correlation)

    def resume_key(self) -> list[Any]:
        """Indices of all examples, groups and sources, and the scores of a teacher."""
        return self.examples.indices()


def rankable_queries(pairs: ScoredPairs) -> dict[str, list[int]]:
    """Rows of each query (the first text of a pair) that has documents of different scores."""
    rows_of: dict[str, list[int]] = {}
    for row, query in enumerate(pairs.left):
        rows_of.setdefault(query, []).append(row)
    return {query: rows for query, rows in rows_of.items() if len({pairs.scores[row] for row in rows}) > 1}


def measure_ranking(pairs: ScoredPairs, predicted: Any) -> dict[str, float]:
    """Mean nDCG@10 and MRR@10 over the queries of scored pairs, in points; a gain is a score minus the lowest one."""
    gains = np.asarray(pairs.scores, np.float64) - min(pairs.scores)
    values = []
    for rows in rankable_queries(pairs).values():
        relevant = [index for index, row in enumerate(rows) if gains[row] > 0]
        ranks = document_ranks(np.asarray(predicted)[rows], relevant)
        of_relevant = gains[rows][relevant]
        values.append((ndcg(ranks, of_relevant, of_relevant, _CUTOFF), reciprocal_rank(ranks[ranks <= _CUTOFF])))
    means = 100 * np.mean(values, axis=0)
    return {"ndcg@10": round(float(means[0]), 2), "mrr@10": round(float(means[1]), 2)}
