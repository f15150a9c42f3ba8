"""Bottleneck and convolution adapters: small networks after the attention and the MLP of every block."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from decoder2vec.adapters.bottleneck import (
    NORMS,
    Bottleneck,
    BottleneckConfig,
    BranchAdapter,
    Convolution,
    ConvolutionConfig,
)
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.branches import BRANCHES
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.training.recipes.adapter import AdapterRecipe


@dataclass(frozen=True)
class BranchAdapterRecipe(AdapterRecipe):
    """What both kinds share: where adapters are inserted."""

    mergeable = False

    where: tuple[str, ...] = BRANCHES
    """After which branches of a block: attn, mlp."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.where:
            if name not in BRANCHES:
                raise unknown_name("branch", name, BRANCHES)
        if not self.where:
            raise InputError(f"where names the branches that get adapters: {', '.join(BRANCHES)}.")
        if self.compile_blocks:
            raise InputError(f"Compiled blocks leave out what {self.name} inserts; leave out compile_blocks.")

    def start_values(self, module: nn.Module) -> dict[str, Tensor]:
        """Not of the first layers, where the last ones start at zero: the change is scaled by those alone."""
        values = super().start_values(module)
        last = {name: value for name, value in values.items() if not {"down", "first"} & set(name.split("."))}
        starts_at_zero = not any(value.any() for name, value in last.items() if "norm" not in name.split("."))
        return last if starts_at_zero else values


@dataclass(frozen=True)
class BottleneckRecipe(BranchAdapterRecipe):
    """Train two linear layers with a narrow one between them, after the branches of every block that runs."""

    name = "bottleneck"
    about = "The model is frozen; trained bottleneck adapters follow the attention and the MLP of each block."

    width: int = 256
    """Of the layer in the middle."""
    norm: str = "none"
    """none, or post: a LayerNorm after each adapter, as Samin et al. have it, with which the start is not the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise InputError(f"width must be 1 or more, not {self.width}.")
        if self.norm not in NORMS:
            raise unknown_name("norm", self.norm, NORMS)

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """New adapters; without a norm they change nothing yet."""
        return _attach(backbone, Bottleneck(backbone, BottleneckConfig(self.width, self.norm, self.where, depth)))


@dataclass(frozen=True)
class ConvolutionRecipe(BranchAdapterRecipe):
    """Train two convolutions over the tokens of a text, after the branches of every block that runs."""

    name = "conv"
    about = "The model is frozen; trained convolution adapters follow the attention and the MLP of each block."

    kernel: int = 3
    """Tokens that a convolution reads: earlier ones only under causal attention; 1 as Samin et al. have it."""
    width: int = 64
    """Channels between both convolutions; 0: as many as the model's width, as Samin et al. have it."""
    last_relu: bool = False
    """A ReLU after the second convolution too, as Samin et al. have it; the start is then not the model itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel < 1 or self.width < 0:
            raise InputError("kernel must be 1 or more tokens, and width 0 or more.")

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """New adapters; without the last ReLU they change nothing yet."""
        config = ConvolutionConfig(self.kernel, self.width, self.last_relu, self.where, depth)
        return _attach(backbone, Convolution(backbone, config))


def _attach(backbone: Backbone, adapter: BranchAdapter) -> tuple[Backbone, nn.Module]:
    return backbone.with_adapter(adapter.to(backbone.device)), adapter
