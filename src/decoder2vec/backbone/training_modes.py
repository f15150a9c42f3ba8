"""Ways to run a backbone's blocks in training: gradient checkpointing, compilation, attention dropout.

Each is a context that works for every family and adapter, and restores the model when it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import UnsupportedError

_ATTENTION_DROPOUTS = ("attention_dropout", "attn_dropout", "dropout")
"""Names under which attention modules keep the dropout of their weights."""
_OUTPUT_DROPOUT = "hidden_dropout"
"""Dropout that some attention modules apply to their output."""


@contextmanager
def gradient_checkpointing(backbone: Backbone) -> Iterator[None]:
    """Context in which blocks store no activations and compute them again in the backward pass.

    The switch of transformers silently drops caches, and with them prefixes; this one changes nothing but memory.
    """
    blocks = list(backbone.blocks)
    forwards = [block.forward for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            block.forward = partial(checkpoint, forward, use_reentrant=False)
        yield
    finally:
        for block in blocks:
            del block.forward  # the method of the class is visible again


class CompiledBlocks:
    """A backbone's blocks compiled for passes with gradients: once per kind of block, for batches of all sizes.

    The first pass takes a minute. Passes without gradients run uncompiled; they would have to be compiled separately.
    """

    def __init__(self, backbone: Backbone, backend: str = "inductor") -> None:
        self.forwards = [
            (block, _compile_forward(block.forward, index, backend)) for index, block in enumerate(backbone.blocks)
        ]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Context in which the blocks run compiled."""
        try:
            for block, forward in self.forwards:
                block.forward = forward
            yield
        finally:
            for block, _ in self.forwards:
                del block.forward  # the method of the class is visible again


def _compile_forward(forward: Callable[..., Any], index: int, backend: str) -> Callable[..., Any]:
    compiled = torch.compile(forward, dynamic=True, backend=backend)

    def layer_of_cache(value: Any) -> Any:
        """Replace a cache by the block's layer of it; indexing inside would recompile the block for every index."""
        return value.layers[index] if isinstance(value, Cache) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        try:
            return compiled(
                *map(layer_of_cache, args), **{name: layer_of_cache(value) for name, value in kwargs.items()}
            )
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise UnsupportedError(
                f"The blocks cannot be compiled here ({reason}); leave out compile_blocks."
            ) from error

    return run


@contextmanager
def attention_dropout(backbone: Backbone, rate: float) -> Iterator[None]:
    """Context in which attention weights are dropped at this rate, and nothing else is.

    Families keep the rate as a number or as a module, under one of three names.
    """
    changes: list[tuple[Any, str, Any]] = []

    def set_temporarily(owner: Any, name: str, value: Any) -> None:
        changes.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        for module in backbone.blocks.modules():
            name = next((name for name in _ATTENTION_DROPOUTS if hasattr(module, name)), None)
            if name is None or "Attention" not in type(module).__name__:
                continue
            dropout = getattr(module, name)
            if isinstance(dropout, nn.Dropout):
                set_temporarily(dropout, "p", rate)
                set_temporarily(dropout, "training", True)
            elif isinstance(dropout, int | float):
                set_temporarily(module, name, rate)
            set_temporarily(module, "training", True)  # of this module only: its children stay in eval mode
            if hasattr(module, _OUTPUT_DROPOUT):
                set_temporarily(module, _OUTPUT_DROPOUT, 0.0)
        yield
    finally:
        for owner, name, value in reversed(changes):
            setattr(owner, name, value)
