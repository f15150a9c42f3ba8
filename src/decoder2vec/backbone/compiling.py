"""Blocks compiled into few kernels: on a GPU a small model spends most of a step on launching small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache

from decoder2vec.backbone.load import Backbone
from decoder2vec.errors import UnsupportedError


class CompiledBlocks:
    """A backbone's blocks, compiled for passes with gradients: blocks of one kind together, for batches of all sizes.

    The first pass takes a minute. Passes without gradients stay as they are; they would have to be compiled, too.
    """

    def __init__(self, backbone: Backbone, backend: str = "inductor") -> None:
        self.forwards = [
            (block, _compiled(block.forward, number, backend)) for number, block in enumerate(backbone.blocks)
        ]

    @contextmanager
    def switched_on(self) -> Iterator[None]:
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
