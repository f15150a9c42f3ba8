"""Small networks, one for each layer, computed for all layers together.

Tensors are [layer, text, width]. Thirty small matrix products become one batched product, which is what makes
training thirty encoders cost about as much as training one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.heads.pair import PAIR_HEADS, PairHead, SumHead


class LayerwiseLinear(nn.Module):
    """An nn.Linear for each layer: [layer, text, inside] -> [layer, text, outside]."""

    def __init__(self, layers: int, inside: int, outside: int, *, orthogonal: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers, inside, outside))
        self.bias = nn.Parameter(torch.zeros(layers, 1, outside))
        for matrix in self.weight.data:
            if orthogonal:  # angles between inputs survive, so an untrained encoder is as good as its input
                nn.init.orthogonal_(matrix)
            else:
                nn.init.uniform_(matrix, -1 / math.sqrt(inside), 1 / math.sqrt(inside))

    def forward(self, x: Tensor) -> Tensor:
        """All layers in one batched product."""
        return torch.baddbmm(self.bias, x, self.weight)


class LayerwiseNorm(nn.Module):
    """An nn.LayerNorm for each layer."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(layers, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Each vector to mean 0 and variance 1, then the layer's own scale and shift."""
        return functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class LayerwiseMLP(nn.Module):
    """Linear where `hidden` is empty; else hidden layers with norm and GELU inside, and a shortcut if wanted.

    With a shortcut the hidden path starts at zero: the network begins as a linear map that keeps angles, and learns
    only what bends.
    """

    def __init__(self, layers: int, sizes: tuple[int, ...], *, shortcut: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        inside, *hidden, outside = sizes
        widths = [inside, *hidden]
        self.hidden = nn.ModuleList(LayerwiseLinear(layers, a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(LayerwiseNorm(layers, width) for width in hidden)
        self.last = LayerwiseLinear(layers, widths[-1], outside, orthogonal=not hidden)
        self.shortcut = LayerwiseLinear(layers, inside, outside, orthogonal=True) if shortcut and hidden else None
        self.dropout = dropout
        if self.shortcut is not None:
            nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[layer, text, inside] -> [layer, text, outside]."""
        y: Tensor = x
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            y = functional.dropout(functional.gelu(norm(linear(y))), self.dropout, self.training)
        y = self.last(y)
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return y


def spread(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    """One value for each of `count` layers: (256, 512) gives 256 to the lower and 512 to the upper half.

    Where the count does not divide, the upper parts are the smaller ones.
    """
    bounds = [count - (count * (len(values) - part)) // len(values) for part in range(len(values) + 1)]
    return tuple(value for part, value in enumerate(values) for _ in range(bounds[part + 1] - bounds[part]))


MIXINGS = ("none", "attention_latents", "attention_codes", "unified")


@dataclass(frozen=True)
class CodeSpec:
    """The shape of a layerwise network."""

    dim: int
    """Width of a latent."""
    widths: tuple[int, ...]
    """Width of the code of each reading; 0: no encoder, the latent itself is the code."""
    hidden: int = 0
    """Width of the hidden layers; 0: the encoders are linear."""
    depth: int = 1
    """How many hidden layers."""
    shortcut: bool = False
    """Add a linear path around the hidden layers."""
    mixing: str = "none"
    """none: a block per reading. attention_latents, attention_codes: learned queries pool over the readings.
    unified: codes are projected up to one width and summed."""
    mixed_width: int = 0
    """Width of the unified vector, or the number of attention queries."""
    head: str = "sum"
    """sum: weighted sum of cosines. gated: weights that depend on the cosines. mlp: the paper's. each: none."""
    unit: bool = False
    """Scale each latent to unit length first."""
    dropout: float = 0.0
    noise: float = 0.0
    """Noise added to latents in training, in standard deviations of each dimension."""

    def __post_init__(self) -> None:
        if self.mixing not in MIXINGS:
            raise unknown_name("mixing", self.mixing, MIXINGS)
        if self.head not in PAIR_HEADS:
            raise unknown_name("head", self.head, PAIR_HEADS)
        if self.mixing != "none" and self.mixed_width < 1:
            raise InputError(f"mixing = {self.mixing!r} needs a mixed_width of 1 or more, not {self.mixed_width}.")
        if self.mixing.startswith("attention") and len(set(self.widths)) > 1:
            raise InputError("Attention over layers needs codes of one width; give a single width.")

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Readings whose codes have the same width, narrowest first; each group is one batched product."""
        return tuple(
            tuple(number for number, width in enumerate(self.widths) if width == chosen)
            for chosen in sorted(set(self.widths))
        )

    @property
    def block_groups(self) -> tuple[tuple[int, int], ...]:
        """(how many blocks, how wide) for each run of equal blocks of the vector."""
        code = self.widths[0] or self.dim
        if self.mixing == "unified":
            return ((1, self.mixed_width),)
        if self.mixing == "attention_codes":
            return ((self.mixed_width, code),)
        if self.mixing == "attention_latents":
            return ((self.mixed_width, code),)
        return tuple((len(group), self.widths[group[0]] or self.dim) for group in self.groups)

    @property
    def blocks(self) -> int:
        """How many blocks a vector has."""
        return sum(count for count, _ in self.block_groups)

    @property
    def size(self) -> int:
        """Width of the whole vector."""
        return sum(count * width for count, width in self.block_groups)


class CodeNet(nn.Module):
    """Latents to codes, codes to blocks, blocks to one vector or to a score for a pair."""

    shift: Tensor
    scale: Tensor
    spread: Tensor
    order: Tensor

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        self.spec = spec
        readings, dim = len(spec.widths), spec.dim
        self.register_buffer("shift", torch.zeros(readings, 1, dim))
        self.register_buffer("scale", torch.ones(readings, 1, dim))
        self.register_buffer("spread", torch.ones(readings, 1, dim), persistent=False)
        places = [number for group in spec.groups for number in group]
        inverse = torch.tensor([places.index(number) for number in range(readings)])
        self.register_buffer("order", inverse if spec.mixing == "none" else torch.arange(spec.blocks), persistent=False)
        pooled_first = spec.mixing == "attention_latents"
        groups = (tuple(range(spec.mixed_width)),) if pooled_first else spec.groups
        self.encoders = nn.ModuleList(
            _encoder(spec, len(group), spec.widths[0 if pooled_first else group[0]]) for group in groups
        )
        self.mixer = _mixer(spec)
        self.pair: PairHead = PAIR_HEADS[spec.head](spec.blocks)

    def clean(self, latents: Tensor) -> Tensor:
        """Centred and scaled latents."""
        x = (latents.float() - self.shift) * self.scale
        return functional.normalize(x, dim=-1) if self.spec.unit else x

    def prepare(self, latents: Tensor) -> Tensor:
        """Clean latents; in training, with noise and dropped dimensions."""
        if self.training and self.spec.noise:
            latents = latents + self.spec.noise * self.spread * torch.randn_like(latents)
        return functional.dropout(self.clean(latents), self.spec.dropout, self.training)

    def set_statistics(self, mean: Tensor, deviation: Tensor, *, standardise: bool) -> None:
        """Take over [reading, 1, dim] statistics of training latents.

        Standardised, every dimension has mean 0 and deviation 1. Else each reading is only divided by its size:
        cosines stay what they are, and deep layers, which are large, do not need other learning rates.
        """
        constant = deviation <= 1e-6 * deviation.amax(dim=-1, keepdim=True)
        size = (mean.pow(2) + deviation.pow(2)).mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)
        scale = 1 / torch.where(constant, size, deviation) if standardise else (1 / size).expand_as(mean)
        self.shift.copy_(mean if standardise else torch.zeros_like(mean))
        self.scale.copy_(scale)
        self.spread.copy_(deviation)

    def only(self, kept: Sequence[int]) -> CodeNet:
        """The network of some of the readings, with the head "sum" over them."""
        spec = replace(self.spec, widths=tuple(self.spec.widths[number] for number in kept), head="sum")
        net = CodeNet(spec).to(self.shift.device)
        for name in ("shift", "scale", "spread"):
            getattr(net, name).copy_(getattr(self, name)[list(kept)])
        for group, encoder in zip(spec.groups, net.encoders, strict=True):
            number, old = next((n, g) for n, g in enumerate(self.spec.groups) if kept[group[0]] in g)
            rows = [old.index(kept[reading]) for reading in group]
            state = {name: tensor[rows] for name, tensor in self.encoders[number].state_dict().items()}
            encoder.load_state_dict(state)
        if isinstance(self.pair, SumHead) and isinstance(net.pair, SumHead):
            net.pair.logits.data.copy_(self.pair.logits.data[list(kept)])
        return net

    def codes(self, latents: Tensor) -> list[Tensor]:
        """[group's readings, text, width] for each group of readings."""
        x = self.prepare(latents)
        if self.spec.mixing == "attention_latents":
            x = cast(_Attention, self.mixer)(x)
            return [encode(x) for encode in self.encoders]
        one = len(self.encoders) == 1
        return [
            encode(x if one else x[list(group)]) for encode, group in zip(self.encoders, self.spec.groups, strict=True)
        ]

    def mixed(self, codes: list[Tensor]) -> list[Tensor]:
        """Codes after mixing: the blocks, not yet of unit length."""
        if self.spec.mixing in ("none", "attention_latents"):
            return codes
        mixed: Tensor = cast(nn.Module, self.mixer)(codes)
        return [mixed]

    def blocks(self, latents: Tensor) -> list[Tensor]:
        """Unit vectors [blocks of a group, text, width]."""
        return [functional.normalize(block, dim=-1) for block in self.mixed(self.codes(latents))]

    def forward(self, latents: Tensor) -> Tensor:
        """[reading, text, dim] latents to [text, size] vectors of unit length."""
        return self.join(self.blocks(latents))

    def join(self, blocks: list[Tensor]) -> Tensor:
        """One vector from blocks: their dot product is the weighted sum of the blocks' cosines."""
        roots = self.pair.weights().sqrt()[_inverse(self.order)]
        parts, begin = [], 0
        for block in blocks:
            weighted = block * roots[begin : begin + len(block), None, None].to(block.dtype)
            parts.append(weighted.transpose(0, 1).flatten(1))
            begin += len(block)
        return torch.cat(parts, dim=1)

    def split(self, vectors: Tensor) -> list[Tensor]:
        """The unit blocks of stored vectors, in their own precision: the inverse of `join`."""
        parts, begin = [], 0
        for count, width in self.spec.block_groups:
            part = vectors[:, begin : begin + count * width].reshape(-1, count, width)
            parts.append(functional.normalize(part, dim=-1).transpose(0, 1))
            begin += count * width
        return parts

    def cosines(self, left: list[Tensor], right: list[Tensor]) -> Tensor:
        """[pair, block] cosines, in the order of the readings."""
        return self.in_order(torch.cat([(a * b).sum(dim=-1) for a, b in zip(left, right, strict=True)])).T

    def in_order(self, by_block: Tensor) -> Tensor:
        """[block, ...] values from the order of the blocks into that of the readings."""
        return by_block[self.order.to(by_block.device)]

    def pair_cosines(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair, block] cosines of two batches of latents."""
        both = self.blocks(torch.cat([left, right], dim=1))
        half = left.shape[1]
        return self.cosines([block[:, :half] for block in both], [block[:, half:] for block in both])

    def score(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair] scores of two batches of latents ([pair, block] with the head "each")."""
        scores: Tensor = self.pair(self.pair_cosines(left, right))
        return scores

    def parameter_count(self) -> int:
        """Trainable numbers."""
        return sum(parameter.numel() for parameter in self.parameters())


class _Attention(nn.Module):
    """Learned queries, each taking its own softmax-weighted mean of the readings of a text."""

    def __init__(self, queries: int, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width) / width)

    def forward(self, codes: Tensor | list[Tensor]) -> Tensor:
        """[reading, text, width] -> [query, text, width]."""
        x = codes if isinstance(codes, Tensor) else codes[0]
        weights = torch.einsum("qw,rtw->qtr", self.queries, x).softmax(dim=-1)
        return torch.einsum("qtr,rtw->qtw", weights, x)


class _Unified(nn.Module):
    """Every code projected up to one width, and summed."""

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        self.up = nn.ModuleList(
            LayerwiseLinear(len(group), spec.widths[group[0]] or spec.dim, spec.mixed_width) for group in spec.groups
        )

    def forward(self, codes: list[Tensor]) -> Tensor:
        """Groups of [reading, text, width] -> [1, text, mixed width]."""
        parts = [up(code).sum(dim=0, keepdim=True) for up, code in zip(self.up, codes, strict=True)]
        return torch.stack(parts).sum(dim=0)


def _encoder(spec: CodeSpec, count: int, width: int) -> nn.Module:
    if not width:
        return nn.Identity()
    sizes = (spec.dim, *([spec.hidden] * spec.depth if spec.hidden else []), width)
    return LayerwiseMLP(count, sizes, shortcut=spec.shortcut, dropout=spec.dropout)


def _mixer(spec: CodeSpec) -> nn.Module | None:
    if spec.mixing == "unified":
        return _Unified(spec)
    if spec.mixing == "attention_codes":
        return _Attention(spec.mixed_width, spec.widths[0] or spec.dim)
    return _Attention(spec.mixed_width, spec.dim) if spec.mixing == "attention_latents" else None


def _inverse(order: Tensor) -> Tensor:
    return torch.argsort(order)
