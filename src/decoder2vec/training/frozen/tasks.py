"""Stages of FREEZE, each a task for the loop: inference labels, triplets, scored pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.errors import DivergedError
from decoder2vec.heads.codes import CodeNet, LayerwiseLinear
from decoder2vec.maths.losses import SCORE_LOSSES, info_nce
from decoder2vec.maths.metrics import METRICS
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.data import NLI_LABELS, TrainingData
from decoder2vec.training.loop import Rows, Task

Measured = NDArray[np.float64]

_PAIRS_AT_ONCE = 512
_HELD_OUT = 20
"""Of the rows with labels, one in this many only measures the accuracy."""


@dataclass(frozen=True)
class ScoredRows:
    """Pairs as rows of a table."""

    left: Rows
    right: Rows
    scores: NDArray[np.float64]

    @classmethod
    def of(cls, table: LatentTable, pairs: ScoredPairs) -> ScoredRows:
        """The rows of some pairs."""
        return cls(table.rows(pairs.left), table.rows(pairs.right), np.asarray(pairs.scores, np.float64))


@torch.no_grad()
def over_pairs(table: LatentTable, pairs: ScoredRows, measure: Callable[[Tensor, Tensor], Tensor]) -> Measured:
    """[pair, ...] what `measure` makes of the latents of both sides, some pairs at a time; it must be finite."""
    parts = []
    for begin in range(0, len(pairs.left), _PAIRS_AT_ONCE):
        part = slice(begin, begin + _PAIRS_AT_ONCE)
        parts.append(measure(table.batch(pairs.left[part]), table.batch(pairs.right[part])))
    values = torch.cat(parts)
    if not torch.isfinite(values).all():  # a correlation would call them 0, better than many a beginning
        raise DivergedError("The scores are no longer finite; try a lower learning rate.")
    return values.cpu().double().numpy()


def predict(net: CodeNet, table: LatentTable, pairs: ScoredRows) -> Measured:
    """[pair] scores of the network; [pair, block] with the head "each"."""
    net.eval()
    return over_pairs(table, pairs, net.score)


def correlation(metric: str, predicted: Measured, scores: Measured) -> float:
    """In points."""
    return 100 * METRICS[metric](predicted, scores)


def dev_scores(net: CodeNet, table: LatentTable, dev: list[ScoredRows], metric: str) -> Measured:
    """The mean over the dev files: one number, or one for each layer under the head "each"."""
    found = []
    for pairs in dev:
        columns = np.atleast_2d(predict(net, table, pairs).T)
        found.append([correlation(metric, column, pairs.scores) for column in columns])
    return np.asarray(np.mean(found, axis=0))


def siamese(net: CodeNet, table: LatentTable, data: TrainingData, pairs: ScoredPairs, recipe: Freeze) -> Task:
    """Learn human scores of pairs."""
    rows = ScoredRows.of(table, pairs)
    target = torch.from_numpy(data.fraction(pairs.scores)).to(table.device)
    dev = [ScoredRows.of(table, each) for each in data.dev]
    loss_of = SCORE_LOSSES[recipe.loss]

    def loss(batch: Rows) -> Tensor:
        both = table.batch(np.concatenate([rows.left[batch], rows.right[batch]]))
        scores = net.score(both[:, : len(batch)], both[:, len(batch) :])
        wanted = target[torch.from_numpy(batch).to(table.device)]
        if scores.ndim == 2:
            return torch.stack([loss_of(column, wanted) for column in scores.T]).sum()
        return loss_of(scores, wanted)

    return Task(
        "pairs", len(pairs), loss, lambda: float(dev_scores(net, table, dev, recipe.choose_by).max()), recipe.training
    )


def triplets(net: CodeNet, table: LatentTable, data: TrainingData, recipe: Freeze) -> Task:
    """Pull each anchor to its positive, away from its negative and from everyone else's."""
    rows = np.stack([table.rows(column) for column in zip(*data.triplets, strict=True)])
    dev = [ScoredRows.of(table, each) for each in data.dev]

    def loss(batch: Rows) -> Tensor:
        anchors, positives, negatives = net(table.batch(rows[:, batch].ravel())).chunk(3)
        return info_nce(anchors, positives, negatives[:, None], temperature=recipe.temperature)

    def cosine(left: Tensor, right: Tensor) -> Tensor:  # the embedding's own, whatever head comes later
        a, b = net.join(net.blocks(left)), net.join(net.blocks(right))
        return (a * b).sum(dim=-1)

    def score() -> float:
        net.eval()
        metric = recipe.choose_by
        return float(np.mean([correlation(metric, over_pairs(table, pairs, cosine), pairs.scores) for pairs in dev]))

    return Task("triplets", rows.shape[1], loss, score, recipe.pretraining)


class InferenceNet(nn.Module):
    """A code network and, on its codes u and v, a three-way classifier on (u, v, |u - v|) for each layer."""

    def __init__(self, net: CodeNet) -> None:
        super().__init__()
        self.net = net
        self.judges = nn.ModuleList(
            LayerwiseLinear(count, 3 * width, len(NLI_LABELS)) for count, width in net.spec.block_groups
        )

    def forward(self, latents: Tensor) -> Tensor:
        """[pair, label] logits, the mean over layers; the first half of the texts are premises."""
        logits = []
        for judge, block in zip(self.judges, self.net.blocks(latents), strict=True):
            u, v = block.chunk(2, dim=1)
            logits.append(judge(torch.cat([u, v, (u - v).abs()], dim=-1)))
        return torch.cat(logits).mean(dim=0)


def inference(module: InferenceNet, table: LatentTable, data: TrainingData, recipe: Freeze) -> Task:
    """Learn whether one sentence follows from another; the score is the accuracy on one row in twenty, in percent."""
    labels = torch.tensor([NLI_LABELS.index(row[0]) for row in data.nli], device=table.device)
    rows = np.stack([table.rows([row[1] for row in data.nli]), table.rows([row[2] for row in data.nli])])
    held = np.arange(len(data.nli)) % _HELD_OUT == 0
    train, test = np.flatnonzero(~held), np.flatnonzero(held)

    def loss(batch: Rows) -> Tensor:
        chosen = train[batch]
        wanted = labels[torch.from_numpy(chosen).to(table.device)]
        return functional.cross_entropy(module(table.batch(rows[:, chosen].ravel())), wanted)

    @torch.no_grad()
    def score() -> float:
        module.eval()
        right = 0
        for begin in range(0, len(test), _PAIRS_AT_ONCE):
            chosen = test[begin : begin + _PAIRS_AT_ONCE]
            guess = module(table.batch(rows[:, chosen].ravel())).argmax(dim=1)
            right += int((guess == labels[torch.from_numpy(chosen).to(table.device)]).sum())
        return 100 * right / max(1, len(test))

    return Task("inference", len(train), loss, score, recipe.pretraining)
