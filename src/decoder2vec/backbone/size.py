"""How many parameters a model has, and how many it would have if it were cut: counted, never multiplied."""

from __future__ import annotations

from itertools import accumulate

from torch import nn

from decoder2vec.backbone.layers import find_blocks


def count_parameters(model: nn.Module) -> int:
    """Numbers in all weights; a weight that stands in two places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def trained_share(trained: int, model: nn.Module) -> dict[str, int | float]:
    """So many trained numbers beside those of the model."""
    frozen = count_parameters(model)
    return {"trained": trained, "backbone": frozen, "percent": round(100 * trained / frozen, 4)}


def parameters_by_depth(model: nn.Module) -> list[int]:
    """What is left of the model with its first block only, with two ... with all: embeddings and norm always stay."""
    blocks = [count_parameters(block) for block in find_blocks(model)[1]]
    outside = count_parameters(model) - sum(blocks)
    return [outside + inside for inside in accumulate(blocks)]


def blocks_share_weights(model: nn.Module) -> bool:
    """Does a weight serve two blocks? Then a block is not a part that can be taken away."""
    seen = [id(parameter) for block in find_blocks(model)[1] for parameter in block.parameters()]
    return len(seen) != len(set(seen))
