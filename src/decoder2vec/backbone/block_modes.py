"""Ways to run a backbone's blocks: gradient checkpointing, compilation, attention dropout.

Each is a context that works for every family and adapter, and restores the model when it closes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import UnsupportedError

log = logging.getLogger(__name__)

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

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Of the pass, and of computing a block again."""
        return nullcontext(), backbone.adapter.recomputing() if backbone.adapter else nullcontext()

    try:
        for block, forward in zip(blocks, forwards, strict=True):
            block.forward = partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)
        yield
    finally:
        for block in blocks:
            del block.forward  # the method of the class is visible again


@contextmanager
def computing_in(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Context in which a model computes with its weights cast to a dtype; gradients reach the weights themselves.

    Autocast alone would cast the weights of linear layers only, and leave the states between blocks in float32.
    """
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_floating_point() and parameter.dtype != dtype
    ]
    cast = _Cast.apply(dtype, *(parameter for *_, parameter in places)) if places else ()  # type: ignore[no-untyped-call]
    try:
        for (module, name, _), parameter in zip(places, cast, strict=True):
            module.__dict__[name] = parameter  # found before the parameter of that name
        yield
    finally:
        for module, name, _ in places:
            module.__dict__.pop(name, None)


class _Cast(torch.autograd.Function):
    """Casts many tensors at once, and their gradients back: one launch on a GPU instead of hundreds."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors in another dtype."""
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        cast = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(cast, [tensor.detach() for tensor in tensors])
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients in the dtypes of the tensors; None where there is none."""
        present = [gradient for gradient in gradients if gradient is not None]
        dtypes = [dtype for dtype, gradient in zip(ctx.dtypes, gradients, strict=True) if gradient is not None]
        cast = [torch.empty_like(gradient, dtype=dtype) for gradient, dtype in zip(present, dtypes, strict=True)]
        if cast:
            torch._foreach_copy_(cast, present)
        remaining = iter(cast)
        return None, *(None if gradient is None else next(remaining) for gradient in gradients)


class CompiledBlocks:
    """A backbone's blocks compiled for passes with or without gradients, for batches of all sizes.

    Each kind of block is compiled once, in the first pass, which takes up to a minute. Other passes run uncompiled.

    Args:
        backbone: The model.
        backend: That of `torch.compile`.
        gradients: For which passes.
    """

    def __init__(self, backbone: Backbone, backend: Any = "inductor", *, gradients: bool = True) -> None:
        self.backend, self.gradients = backend, gradients
        self.forwards = [(block, self._compiled(block.forward, index)) for index, block in enumerate(backbone.blocks)]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Context in which the blocks run compiled.

        Raises:
            UnsupportedError: They cannot be compiled; raised in the context.
        """
        try:
            for block, forward in self.forwards:
                block.forward = forward
            yield
        finally:
            for block, _ in self.forwards:
                del block.forward  # the method of the class is visible again

    def _compiled(self, forward: Callable[..., Any], index: int) -> Callable[..., Any]:
        compiled = torch.compile(forward, dynamic=True, backend=self.backend)

        def layer_of_cache(value: Any) -> Any:
            """Replace a cache by the block's layer of it; indexing inside would recompile the block for every index."""
            return value.layers[index] if isinstance(value, Cache) else value

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() != self.gradients:
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


class BusyBlocks:
    """Runs passes without gradients, with compiled blocks once they have computed so much that compiling pays.

    Who has embedded many texts will probably embed more. Blocks that cannot be compiled run as they are.

    Args:
        backbone: The model.
        after: Tokens that run uncompiled; a GPU computes the default in about the time that compiling takes.
        backend: That of `torch.compile`.
    """

    def __init__(self, backbone: Backbone, after: int = 20_000_000, backend: Any = "inductor") -> None:
        self.backbone, self.after, self.backend = backbone, after, backend
        self.n_tokens = 0
        self._compiled: CompiledBlocks | None = None
        self._can_compile = True

    @classmethod
    def of(cls, backbone: Backbone) -> BusyBlocks:
        """The one of a model, which counts the tokens of all passes."""
        return _BUSY_BLOCKS.setdefault(backbone.model, cls(backbone))

    @property
    def compiles(self) -> bool:
        """Whether the next pass runs compiled."""
        return self.n_tokens > self.after and self._can_compile

    def run(self, forward: Callable[[], Tensor], n_tokens: int) -> Tensor:
        """Return the result of a pass over this number of tokens."""
        self.n_tokens += n_tokens
        if not self.compiles:
            return forward()
        self._compiled = self._compiled or CompiledBlocks(self.backbone, self.backend, gradients=False)
        try:
            with self._compiled.enabled():
                return forward()
        except UnsupportedError as error:
            log.info("%s", error)
            self._can_compile = False
            return forward()


_BUSY_BLOCKS: WeakKeyDictionary[nn.Module, BusyBlocks] = WeakKeyDictionary()


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
