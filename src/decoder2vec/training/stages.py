"""The stages of FREEZE, each a task for the loop: autoencoders, inference labels, triplets, scored pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.activations.table import LatentTable
from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.maths.layerwise import LayerwiseLinear, LayerwiseMLP
from decoder2vec.maths.losses import LOSSES, contrastive
from decoder2vec.maths.metrics import pearson, spearman
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.text.files import Pairs
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows, Task

_PAIRS_AT_ONCE = 512
_HELD_OUT = 20
"""Of the texts for autoencoders, one in this many only measures the reconstruction."""
_METRICS = {"pearson": pearson, "spearman": spearman}
_LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2}


@dataclass(frozen=True)
class ScoredRows:
    """Pairs as rows of a table."""

    left: Rows
    right: Rows
    scores: NDArray[np.float64]

    @classmethod
    def of(cls, table: LatentTable, pairs: Pairs) -> ScoredRows:
        """The rows of some pairs."""
        return cls(table.rows(pairs.left), table.rows(pairs.right), np.asarray(pairs.scores, np.float64))


@torch.no_grad()
def predict(net: CodeNet, table: LatentTable, pairs: ScoredRows) -> NDArray[np.float64]:
    """[pair] scores of the network; [pair, block] with the head "each"."""
    net.eval()
    parts = [
        net.score(
            table.batch(pairs.left[begin : begin + _PAIRS_AT_ONCE]),
            table.batch(pairs.right[begin : begin + _PAIRS_AT_ONCE]),
        )
        for begin in range(0, len(pairs.left), _PAIRS_AT_ONCE)
    ]
    scores = torch.cat(parts)
    if not torch.isfinite(scores).all():  # a correlation would call them 0, better than many a beginning
        raise InputError("The scores are no longer finite; try a lower learning rate.")
    return scores.double().cpu().numpy()


def correlation(metric: str, predicted: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """In points; of many columns, the best one's."""
    columns = predicted.T if predicted.ndim == 2 else [predicted]
    return max(100 * _METRICS[metric](column, scores) for column in columns)


def dev_score(net: CodeNet, table: LatentTable, dev: list[ScoredRows], metric: str) -> float:
    """The mean over the dev files."""
    return float(np.mean([correlation(metric, predict(net, table, pairs), pairs.scores) for pairs in dev]))


def siamese(net: CodeNet, table: LatentTable, data: TrainingData, pairs: Pairs, recipe: Freeze) -> Task:
    """Learn human scores of pairs."""
    rows = ScoredRows.of(table, pairs)
    target = torch.from_numpy(data.fraction(pairs.scores)).to(table.device)
    dev = [ScoredRows.of(table, each) for each in data.dev]
    loss_of = LOSSES[recipe.loss]

    def loss(batch: Rows) -> Tensor:
        both = table.batch(np.concatenate([rows.left[batch], rows.right[batch]]))
        scores = net.score(both[:, : len(batch)], both[:, len(batch) :])
        wanted = target[torch.from_numpy(batch).to(table.device)]
        if scores.ndim == 2:
            return torch.stack([loss_of(column, wanted) for column in scores.T]).sum()
        return loss_of(scores, wanted)

    return Task("pairs", len(pairs), loss, lambda: dev_score(net, table, dev, recipe.choose_by), recipe.training)


def triplets(net: CodeNet, table: LatentTable, data: TrainingData, recipe: Freeze) -> Task:
    """Pull each anchor to its positive, away from its negative and from everyone else's."""
    rows = np.stack([table.rows(column) for column in zip(*data.triplets, strict=True)])
    dev = [ScoredRows.of(table, each) for each in data.dev]

    def loss(batch: Rows) -> Tensor:
        anchors, positives, negatives = net(table.batch(rows[:, batch].ravel())).chunk(3)
        return contrastive(anchors, positives, negatives, recipe.temperature)

    def score() -> float:  # the embedding's own similarity, whatever head comes later
        return float(
            np.mean([correlation(recipe.choose_by, _cosines(net, table, pairs), pairs.scores) for pairs in dev])
        )

    return Task("triplets", rows.shape[1], loss, score, recipe.pretraining)


@torch.no_grad()
def _cosines(net: CodeNet, table: LatentTable, pairs: ScoredRows) -> NDArray[np.float64]:
    net.eval()
    parts = []
    for begin in range(0, len(pairs.left), _PAIRS_AT_ONCE):
        part = slice(begin, begin + _PAIRS_AT_ONCE)
        parts.append((net(table.batch(pairs.left[part])) * net(table.batch(pairs.right[part]))).sum(dim=-1))
    return torch.cat(parts).double().cpu().numpy()


class InferenceNet(nn.Module):
    """A code network and, on its codes u and v, a three-way classifier on (u, v, |u - v|) for each layer."""

    def __init__(self, net: CodeNet) -> None:
        super().__init__()
        self.net = net
        self.judges = nn.ModuleList(
            LayerwiseLinear(count, 3 * width, len(_LABELS)) for count, width in net.spec.block_groups
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
    labels = torch.tensor([_LABELS[row[0]] for row in data.nli], device=table.device)
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


class Autoencoder(nn.Module):
    """A code network and, for each layer, a decoder that rebuilds the latent from the code (or the unified vector)."""

    def __init__(self, net: CodeNet) -> None:
        super().__init__()
        self.net = net
        spec = net.spec
        hidden = [spec.hidden] * spec.depth if spec.hidden else []
        self.decoders = nn.ModuleList(
            LayerwiseMLP(len(group), (_code_width(spec, group), *hidden, spec.dim)) for group in spec.groups
        )

    def errors(self, latents: Tensor) -> Tensor:
        """[reading] mean squared errors, in units of the prepared latents."""
        wanted = self.net.clean(latents)
        codes = self.net.codes(latents)
        if self.net.spec.mixing == "unified":
            whole = self.net.mixed(codes)[0]
            codes = [whole.expand(len(group), -1, -1) for group in self.net.spec.groups]
        errors = wanted.new_zeros(len(self.net.spec.widths))
        for decode, code, group in zip(self.decoders, codes, self.net.spec.groups, strict=True):
            errors[list(group)] = (decode(code) - wanted[list(group)]).pow(2).mean(dim=(1, 2))
        return errors


def reconstruction(module: Autoencoder, table: LatentTable, data: TrainingData, recipe: Freeze) -> Task:
    """Learn to rebuild each layer's latent from its code; the score is minus the error on held-out texts."""
    rows = table.rows(data.texts)
    held = np.arange(len(rows)) % _HELD_OUT == 0
    train = rows[~held] if len(rows) > _HELD_OUT else rows

    def loss(batch: Rows) -> Tensor:
        return module.errors(table.batch(train[batch])).sum()

    return Task(
        "autoencoders",
        len(train),
        loss,
        lambda: -float(layer_errors(module, table, rows[held]).sum()),
        recipe.pretraining,
    )


@torch.no_grad()
def layer_errors(module: Autoencoder, table: LatentTable, rows: Rows) -> Tensor:
    """[reading] mean squared errors over some rows, in units of the prepared latents."""
    module.eval()
    total = torch.zeros(table.shape[0], device=table.device)
    for begin in range(0, len(rows), _PAIRS_AT_ONCE):
        chosen = rows[begin : begin + _PAIRS_AT_ONCE]
        total += module.errors(table.batch(chosen)) * len(chosen)
    return total / max(1, len(rows))


def _code_width(spec: CodeSpec, group: tuple[int, ...]) -> int:
    return spec.mixed_width if spec.mixing == "unified" else spec.widths[group[0]]
