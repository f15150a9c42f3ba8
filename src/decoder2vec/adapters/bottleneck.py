"""Bottleneck and convolution adapters: small trained networks after the attention and the MLP of every block.

Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019; Samin, Nayak, DeMarco and Borg compare both kinds
on speech recognition, which is not part of this package. An adapter gets the output of a branch, and what it returns is
added to the block's input instead. By default it starts as the identity. It is not linear, so it cannot be merged into
the weights of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.attention import parse_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, TokenBatch
from decoder2vec.backbone.blocks import find_blocks
from decoder2vec.backbone.branches import BRANCHES, find_branches, hook_output
from decoder2vec.errors import InputError, UnsupportedError, unknown_name

NORMS = ("none", "post")
"""Whether a LayerNorm follows a bottleneck adapter; the paper has it."""


class TextBounds:
    """Which positions of a batch belong to the same text."""

    def __init__(self, batch: TokenBatch) -> None:
        if batch.packing:
            positions = torch.arange(batch.width, device=batch.ids.device)
            self.texts = torch.bucketize(positions, batch.packing.boundaries[1:], right=True)[None]
        else:
            self.texts = batch.mask - 1  # 0: the text of the row, -1: padding
        self._neighbours: dict[int, Tensor] = {}

    def neighbour_is_outside(self, offset: int) -> Tensor:
        """[batch, token, 1] booleans: the token `offset` positions later is padding or in another text."""
        if offset not in self._neighbours:
            width = self.texts.shape[1]
            positions = torch.arange(width, device=self.texts.device) + offset
            neighbours = self.texts[:, positions.clamp(0, width - 1)]
            inside = (neighbours == self.texts) & (neighbours >= 0) & (positions >= 0) & (positions < width)
            self._neighbours[offset] = ~inside[..., None]
        return self._neighbours[offset]


class BottleneckNetwork(nn.Module):
    """x + W2 GELU(W1 x + b1) + b2, and a LayerNorm of that if `norm` is "post"; W2 and b2 start at zero.

    With the norm it is not the identity at the start.
    """

    def __init__(self, dim: int, width: int, norm: str) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(dim, width), nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
        self.norm = nn.LayerNorm(dim) if norm == "post" else None

    def forward(self, states: Tensor, bounds: TextBounds | None) -> Tensor:
        """[batch, token, dim] states."""
        result: Tensor = states + self.up(functional.gelu(self.down(states)))
        if self.norm:
            result = self.norm(result)
        return result


class ConvolutionNetwork(nn.Module):
    """x + conv(ReLU(conv(x))), and a ReLU of the second convolution if `last_relu`, as in the paper.

    The second convolution starts at zero. With the last ReLU it cannot: its gradient at zero is zero, so that it would
    never change; both convolutions then start as those of torch.
    """

    def __init__(self, dim: int, width: int, kernel: int, *, last_relu: bool, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(dim, width, kernel), nn.Conv1d(width, dim, kernel)
        self.last_relu, self.causal = last_relu, causal
        if not last_relu:
            nn.init.zeros_(self.second.weight)
            nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, states: Tensor, bounds: TextBounds | None) -> Tensor:
        """[batch, token, dim] states; only a kernel of 1 does without the bounds of texts."""
        change = self._convolve(self.second, functional.relu(self._convolve(self.first, states, bounds)), bounds)
        return states + (functional.relu(change) if self.last_relu else change)

    def _convolve(self, layer: nn.Conv1d, states: Tensor, bounds: TextBounds | None) -> Tensor:
        """The convolution within each text, with zeros outside of it: before it (causal) or on both sides."""
        (kernel,) = layer.kernel_size
        if kernel == 1:
            return functional.linear(states, layer.weight[:, :, 0], layer.bias)
        if bounds is None:
            raise UnsupportedError("A convolution must know where texts begin and end; encode them as a batch.")
        first = -(kernel - 1) if self.causal else -((kernel - 1) // 2)
        taps = [
            states.roll(-offset, 1).masked_fill(bounds.neighbour_is_outside(offset), 0)
            for offset in range(first, first + kernel)
        ]
        return functional.linear(torch.cat(taps, dim=-1), layer.weight.transpose(1, 2).flatten(1), layer.bias)


@dataclass(frozen=True)
class BottleneckConfig:
    """Where bottleneck adapters are inserted, and their size."""

    width: int = 256
    """Of the layer in the middle."""
    norm: str = "none"
    """One of `NORMS`."""
    where: tuple[str, ...] = BRANCHES
    """After which branches of a block."""
    depth: int = 0
    """Number of lower blocks that get adapters; 0: all."""


@dataclass(frozen=True)
class ConvolutionConfig:
    """Where convolution adapters are inserted, and their size."""

    kernel: int = 3
    """Tokens that a convolution reads; 1, as in the paper, is a linear layer."""
    width: int = 64
    """Channels between both convolutions; 0: as many as the model's width, as in the paper."""
    last_relu: bool = False
    """ReLU after the second convolution, as in the paper; the adapter then does not start as the identity."""
    where: tuple[str, ...] = BRANCHES
    """After which branches of a block."""
    depth: int = 0
    """Number of lower blocks that get adapters; 0: all."""
    causal_depth: int | None = None
    """Number of lower blocks whose convolutions read earlier tokens only; by default those with causal attention."""


class BranchAdapter(Adapter):
    """Networks after the branches of blocks.

    The name of a network is `inserted.BLOCK-BRANCH`, such as `inserted.0-attn`; names are part of the digest, so they
    must not change.
    """

    packs: ClassVar[bool] = True
    hooks_blocks: ClassVar[bool] = True

    def __init__(
        self, backbone: Backbone, where: Sequence[str], depth: int, make_network: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        for name in where:
            if name not in BRANCHES:
                raise unknown_name("branch", name, BRANCHES)
        found = list(enumerate(find_branches(backbone.model, backbone.blocks)))[: depth or None]
        sites = [(block, name, branches[name]) for block, branches in found for name in branches if name in where]
        if not sites:
            raise UnsupportedError(f"{backbone.family} has no {' or '.join(where) or 'branch'} to adapt.")
        # a plain dict: the model's modules are no submodules of the adapter
        self._branches = {f"{block}-{name}": module for block, name, module in sites}
        self.inserted = nn.ModuleDict({f"{block}-{name}": make_network(block) for block, name, _ in sites})
        self._bounds: TextBounds | None = None
        self._nesting = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> BranchAdapter:
        """A copy for the same model, whose modules are not copied."""
        memo |= {id(module): module for module in self._branches.values()}
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def copy_for(self, model: nn.Module) -> BranchAdapter:
        """A copy for a copy of the model, which may have another number of blocks."""
        copied = copy.deepcopy(self)
        branches = enumerate(find_branches(model, find_blocks(model)[1]))
        found = {f"{block}-{name}": module for block, modules in branches for name, module in modules.items()}
        copied._branches = {name: module for name, module in found.items() if name in self.inserted}
        return copied

    @contextmanager
    def enabled(self, batch: TokenBatch | None = None) -> Iterator[None]:
        """Context in which the networks follow the branches; in nested contexts only the batch changes."""
        handles = [] if self._nesting else self._add_hooks()
        self._nesting += 1
        try:
            with self._within(TextBounds(batch) if batch else self._bounds):
                yield
        finally:
            self._nesting -= 1
            for handle in handles:
                handle.remove()

    def recomputing(self) -> AbstractContextManager[None]:
        """Context with the texts of the current pass."""
        return self._within(self._bounds)

    @contextmanager
    def _within(self, bounds: TextBounds | None) -> Iterator[None]:
        outer, self._bounds = self._bounds, bounds
        try:
            yield
        finally:
            self._bounds = outer

    def _add_hooks(self) -> list[Any]:
        return [hook_output(module, partial(self._run, name)) for name, module in self._branches.items()]

    def _run(self, name: str, output: Tensor) -> Tensor:
        states = output.float()
        if self._bounds:  # some families flatten the tokens of all texts for the MLP
            states = states.reshape(*self._bounds.texts.shape, -1)
        return self.inserted[name](states, self._bounds).view_as(output).to(output.dtype)  # type: ignore[no-any-return]


class Bottleneck(BranchAdapter):
    """Bottleneck adapters: N (2 d h + h + d) parameters for N of them, d dimensions and width h; 2 N d more with norm.

    Args:
        backbone: The model.
        config: Where adapters are inserted, and their size.

    """

    kind: ClassVar[str] = "bottleneck"

    def __init__(self, backbone: Backbone, config: BottleneckConfig) -> None:
        if config.width < 1:
            raise InputError(f"The width of a bottleneck adapter is 1 or more, not {config.width}.")
        if config.norm not in NORMS:
            raise unknown_name("norm", config.norm, NORMS)
        make_network = partial(BottleneckNetwork, backbone.dim, config.width, config.norm)
        super().__init__(backbone, config.where, config.depth, lambda _: make_network())
        self.config = config

    def settings(self) -> dict[str, Any]:
        """The config."""
        return {**asdict(self.config), "where": list(self.config.where)}


class Convolution(BranchAdapter):
    """Convolution adapters: N (2 C d h + h + d) parameters for N of them, kernel C, d dimensions and width h.

    Args:
        backbone: The model; its attention decides which convolutions are causal.
        config: Where adapters are inserted, and their size.

    """

    kind: ClassVar[str] = "conv"

    def __init__(self, backbone: Backbone, config: ConvolutionConfig) -> None:
        if config.kernel < 1 or config.width < 0:
            raise InputError("The kernel of a convolution adapter is 1 or more tokens, its width 0 or more.")
        attention, lower = parse_attention(backbone.attention)
        causal_depth = backbone.n_layers if attention == "causal" else lower
        causal_depth = causal_depth if config.causal_depth is None else config.causal_depth
        width = config.width or backbone.dim
        make_network = partial(ConvolutionNetwork, backbone.dim, width, config.kernel, last_relu=config.last_relu)
        super().__init__(backbone, config.where, config.depth, lambda block: make_network(causal=block < causal_depth))
        self.config = replace(config, causal_depth=causal_depth)

    @property
    def continues(self) -> bool:
        """Only with a kernel of 1: a longer one reads tokens before."""
        return self.config.kernel == 1

    def settings(self) -> dict[str, Any]:
        """The config, with the number of causal blocks."""
        return {**asdict(self.config), "where": list(self.config.where)}
