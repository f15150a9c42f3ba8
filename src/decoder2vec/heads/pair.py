"""Heads that turn the cosines of a pair, one per block, into one score."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

_HIDDEN = 64


class PairHead(nn.Module, ABC):
    """[pair, block] cosines -> [pair] scores; what stands before the block may have any shape."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks

    def weights(self) -> Tensor:
        """[block] weights with which the blocks enter the embedding; they sum to 1."""
        return torch.full((self.blocks,), 1 / self.blocks, device=next(iter(self.parameters())).device)

    @abstractmethod
    def forward(self, cosines: Tensor) -> Tensor:
        """The scores."""

    def without_each(self, cosines: Tensor) -> Tensor:
        """[pair, block] scores if a block knew only what the others say: its cosine is the mean of theirs."""
        others = (cosines.sum(dim=1, keepdim=True) - cosines) / max(1, self.blocks - 1)
        scores = []
        for block in range(self.blocks):
            without = cosines.clone()
            without[:, block] = others[:, block]
            scores.append(self(without))
        return torch.stack(scores, dim=1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] effect of each block: how much the score falls without what it knows."""
        scores: Tensor = self(cosines)
        return scores[:, None] - self.without_each(cosines)


class SumHead(PairHead):
    """A weighted sum with weights that are positive and sum to 1: equal texts score 1, and the vector is the model."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.logits = nn.Parameter(torch.zeros(blocks))

    def weights(self) -> Tensor:
        """[block] weights."""
        return self.logits.softmax(dim=0)

    def forward(self, cosines: Tensor) -> Tensor:
        """The weighted sum, written so that ones give exactly one."""
        return 1 - ((1 - cosines) * self.weights()).sum(dim=-1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] terms of the sum."""
        return cosines * self.weights()


class GatedHead(PairHead):
    """What each block lacks to 1 is subtracted with a weight that depends on all cosines: f(1, ..., 1) = 1."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.bias = nn.Parameter(torch.zeros(blocks))
        self.gate = nn.Sequential(nn.Linear(blocks, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, blocks))

    def forward(self, cosines: Tensor) -> Tensor:
        """1 - what is lacking."""
        return 1 + self.contributions(cosines).sum(dim=-1)

    def contributions(self, cosines: Tensor) -> Tensor:
        """[pair, block] what each block takes away from 1."""
        return -(1 - cosines) * functional.softplus(self.gate(cosines) + self.bias) / self.blocks


class MLPHead(PairHead):
    """The paper's: an MLP and a sigmoid. Nothing makes equal texts score 1."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.layers = nn.Sequential(nn.Linear(blocks, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, 1))

    def forward(self, cosines: Tensor) -> Tensor:
        """Scores between 0 and 1."""
        logits: Tensor = self.layers(cosines)
        scores: Tensor = torch.sigmoid(logits)[..., 0]
        return scores


class EachHead(PairHead):
    """Every block for itself: [pair, block] scores, so that all single-layer models are trained in one run."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.slope = nn.Parameter(torch.full((blocks,), 4.0))
        self.offset = nn.Parameter(torch.full((blocks,), -2.0))

    def forward(self, cosines: Tensor) -> Tensor:
        """[pair, block] scores between 0 and 1."""
        return torch.sigmoid(cosines * self.slope + self.offset)

    def contributions(self, cosines: Tensor) -> Tensor:
        """Each block's own score."""
        return self.forward(cosines)


PAIR_HEADS: dict[str, type[PairHead]] = {"sum": SumHead, "gated": GatedHead, "mlp": MLPHead, "each": EachHead}
