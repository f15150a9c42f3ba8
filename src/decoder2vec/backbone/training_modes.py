"""Blocks that keep no activations for the backward pass but compute them again, whatever the family and the adapter.

transformers' own switch drops caches, and with them prefixes, without a word; this one changes nothing but memory.
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


@contextmanager
def gradient_checkpointing(backbone: Backbone) -> Iterator[None]:
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


class CompiledBlocks:
    """A backbone's blocks, compiled for passes with gradients: blocks of one kind together, for batches of all sizes.

    The first pass takes a minute. Passes without gradients stay as they are; they would have to be compiled, too.
    """

    def __init__(self, backbone: Backbone, backend: str = "inductor") -> None:
        self.forwards = [
            (block, _compiled(block.forward, number, backend)) for number, block in enumerate(backbone.blocks)
        ]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """While this is open the blocks run compiled."""
        try:
            for block, forward in self.forwards:
                block.forward = forward
            yield
        finally:
            for block, _ in self.forwards:
                del block.forward  # the class's own shows again


def _compiled(forward: Callable[..., Any], number: int, backend: str) -> Callable[..., Any]:
    fast = torch.compile(forward, dynamic=True, backend=backend)

    def own(value: Any) -> Any:
        """A block that looked itself up in a cache by its number would be compiled anew for each number."""
        return value.layers[number] if isinstance(value, Cache) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        try:
            return fast(*map(own, args), **{name: own(value) for name, value in kwargs.items()})
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise UnsupportedError(
                f"The blocks cannot be compiled here ({reason}); leave out compile_blocks."
            ) from error

    return run


_NAMES = ("attention_dropout", "attn_dropout", "dropout")
_OTHER = "hidden_dropout"
"""What some attention layers drop from the states they add up to."""


@contextmanager
def attention_dropout(backbone: Backbone, share: float) -> Iterator[None]:
    """While this is open, attention layers drop this share of their weights; nothing else drops anything.

    Families keep the share as a number or as a module, under one of three names.
    """
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        for module in backbone.blocks.modules():
            name = next((name for name in _NAMES if hasattr(module, name)), None)
            if name is None or "Attention" not in type(module).__name__:
                continue
            held = getattr(module, name)
            if isinstance(held, nn.Dropout):
                put(held, "p", share)
                put(held, "training", True)
            elif isinstance(held, int | float):
                put(module, name, share)
            put(module, "training", True)  # only of this module: what stands in it stays quiet
            if hasattr(module, _OTHER):
                put(module, _OTHER, 0.0)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
