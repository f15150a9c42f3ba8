"""Pair heads: they turn the cosines of a pair of texts, one per block, into one score."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

_HIDDEN = 64


class PairHead(nn.Module, ABC):
    """[..., block] cosines -> [...] scores."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks

    def weights(self) -> Tensor:
        """[block] weights of the blocks in the embedding; they sum to 1."""
        return torch.full((self.blocks,), 1 / self.blocks, device=next(iter(self.parameters())).device)

    @abstractmethod
    def forward(self, cosines: Tensor) -> Tensor:
        """Return the scores."""

    def scores_without_block(self, cosines: Tensor) -> Tensor:
        """[pair, block] scores with the cosine of each block in turn replaced by the mean of the others."""
        others = (cosines.sum(dim=1, keepdim=True) - cosines) / max(1, self.blocks - 1)
        scores = []
        for block in range(self.blocks):
            ablated = cosines.clone()
            ablated[:, block] = others[:, block]
            scores.append(self(ablated))
        return torch.stack(scores, dim=1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] contribution of each block: how much the score falls without its information."""
        scores: Tensor = self(cosines)
        return scores[:, None] - self.scores_without_block(cosines)


class SumHead(PairHead):
    """A weighted sum with positive weights that sum to 1: equal texts score 1, and the score is the vectors' cosine."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.logits = nn.Parameter(torch.zeros(blocks))

    def weights(self) -> Tensor:
        """[block] weights."""
        return self.logits.softmax(dim=0)

    def forward(self, cosines: Tensor) -> Tensor:
        """Return the weighted sum, written so that ones give exactly one."""
        return 1 - ((1 - cosines) * self.weights()).sum(dim=-1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] terms of the sum."""
        return cosines * self.weights()


class GatedHead(PairHead):
    """Subtracts from 1 the distance of each cosine to 1, weighted depending on all cosines: f(1, ..., 1) = 1."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.bias = nn.Parameter(torch.zeros(blocks))
        self.gate = nn.Sequential(nn.Linear(blocks, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, blocks))

    def forward(self, cosines: Tensor) -> Tensor:
        """Return 1 minus the weighted distances."""
        return 1 + self.contributions(cosines).sum(dim=-1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] what each block subtracts from 1, as a negative number."""
        return -(1 - cosines) * functional.softplus(self.gate(cosines) + self.bias) / self.blocks


class MLPHead(PairHead):
    """The head of the FREEZE paper: an MLP and a sigmoid. Equal texts do not necessarily score 1."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.layers = nn.Sequential(nn.Linear(blocks, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, 1))

    def forward(self, cosines: Tensor) -> Tensor:
        """Return scores between 0 and 1."""
        logits: Tensor = self.layers(cosines)
        scores: Tensor = torch.sigmoid(logits)[..., 0]
        return scores


class EachHead(PairHead):
    """One score per block, [pair, block], so that all single-layer models are trained in one run."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.slope = nn.Parameter(torch.full((blocks,), 4.0))
        self.offset = nn.Parameter(torch.full((blocks,), -2.0))

    def forward(self, cosines: Tensor) -> Tensor:
        """Return [pair, block] scores between 0 and 1."""
        return torch.sigmoid(cosines * self.slope + self.offset)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] scores of the blocks."""
        return self.forward(cosines)


PAIR_HEADS: dict[str, type[PairHead]] = {"sum": SumHead, "gated": GatedHead, "mlp": MLPHead, "each": EachHead}
