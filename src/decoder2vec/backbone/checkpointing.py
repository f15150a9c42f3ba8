"""Blocks that keep no activations for the backward pass but compute them again, whatever the family and the adapter.

transformers' own switch drops caches, and with them prefixes, without a word; this one changes nothing but memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint

from decoder2vec.backbone.load import Backbone


@contextmanager
def checkpointed_blocks(backbone: Backbone) -> Iterator[None]:
    """While this is open, and in the backward pass of what ran in it, each block runs a second time."""
    blocks = list(backbone.blocks)
    plain = [block.forward for block in blocks]
    try:
        for block, forward in zip(blocks, plain, strict=True):
            block.forward = partial(checkpoint, forward, use_reentrant=False)
        yield
    finally:
        for block in blocks:
            del block.forward  # the class's own shows again
