"""The code network of FREEZE: a small encoder for each layer, mixed into blocks of one vector, with a score for pairs.

All layers are computed together on [layer, text, width] tensors. Thirty small matrix products become one batched
product, so that training thirty encoders costs about as much as training one.
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

MIXINGS = ("none", "attention_latents", "attention_codes", "unified")


@dataclass(frozen=True)
class CodeSpec:
    """The architecture of a code network."""

    dim: int
    """Width of a latent."""
    widths: tuple[int, ...]
    """Width of the code of each reading; 0: no encoder, the latent itself is the code."""
    hidden: int = 0
    """Width of the hidden layers; 0: the encoders are linear."""
    depth: int = 1
    """Number of hidden layers."""
    shortcut: bool = False
    """Add a linear path around the hidden layers."""
    mixing: str = "none"
    """none: one block per reading. attention_latents, attention_codes: learned queries pool over the readings.
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
            tuple(reading for reading, width in enumerate(self.widths) if width == group_width)
            for group_width in sorted(set(self.widths))
        )

    @property
    def block_groups(self) -> tuple[tuple[int, int], ...]:
        """(number of blocks, width) of each group of equally wide blocks of the vector, in order."""
        if self.mixing == "unified":
            return ((1, self.mixed_width),)
        if self.mixing.startswith("attention"):
            return ((self.mixed_width, self.widths[0] or self.dim),)
        return tuple((len(group), self.widths[group[0]] or self.dim) for group in self.groups)

    @property
    def blocks(self) -> int:
        """Number of blocks of a vector."""
        return sum(count for count, _ in self.block_groups)

    @property
    def size(self) -> int:
        """Dimension of the whole vector."""
        return sum(count * width for count, width in self.block_groups)


class CodeNet(nn.Module):
    """Turns latents into codes, codes into blocks, and blocks into one vector or into the score of a pair."""

    shift: Tensor
    scale: Tensor
    deviation: Tensor
    block_order: Tensor

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        self.spec = spec
        readings, dim = len(spec.widths), spec.dim
        self.register_buffer("shift", torch.zeros(readings, 1, dim))
        self.register_buffer("scale", torch.ones(readings, 1, dim))
        self.register_buffer("deviation", torch.ones(readings, 1, dim), persistent=False)
        grouped = [reading for group in spec.groups for reading in group]
        order = torch.tensor([grouped.index(reading) for reading in range(readings)])
        self.register_buffer(
            "block_order", order if spec.mixing == "none" else torch.arange(spec.blocks), persistent=False
        )
        pooled_first = spec.mixing == "attention_latents"
        groups = (tuple(range(spec.mixed_width)),) if pooled_first else spec.groups
        self.encoders = nn.ModuleList(
            _make_encoder(spec, len(group), spec.widths[0 if pooled_first else group[0]]) for group in groups
        )
        self.mixer = _make_mixer(spec)
        self.pair: PairHead = PAIR_HEADS[spec.head](spec.blocks)

    def set_statistics(self, mean: Tensor, deviation: Tensor, *, standardise: bool) -> None:
        """Set the normalisation of the latents from [reading, 1, dim] statistics of the training latents.

        Args:
            mean: Mean of each dimension.
            deviation: Standard deviation of each dimension.
            standardise: True gives every dimension mean 0 and deviation 1. False only divides each reading by its root
                mean square: cosines do not change, and deep layers, which are large, need no other learning rates.
        """
        constant = deviation <= 1e-6 * deviation.amax(dim=-1, keepdim=True)
        root_mean_square = (mean.pow(2) + deviation.pow(2)).mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)
        scale = (
            1 / torch.where(constant, root_mean_square, deviation)
            if standardise
            else (1 / root_mean_square).expand_as(mean)
        )
        self.shift.copy_(mean if standardise else torch.zeros_like(mean))
        self.scale.copy_(scale)
        self.deviation.copy_(deviation)

    def normalise(self, latents: Tensor) -> Tensor:
        """Centre and scale latents."""
        x = (latents.float() - self.shift) * self.scale
        return functional.normalize(x, dim=-1) if self.spec.unit else x

    def prepare(self, latents: Tensor) -> Tensor:
        """Normalise latents; in training, with noise and dropout."""
        if self.training and self.spec.noise:
            latents = latents + self.spec.noise * self.deviation * torch.randn_like(latents)
        return functional.dropout(self.normalise(latents), self.spec.dropout, self.training)

    def codes(self, latents: Tensor) -> list[Tensor]:
        """[readings of the group, text, width] codes of each group of readings."""
        x = self.prepare(latents)
        if self.spec.mixing == "attention_latents":
            x = cast(_Attention, self.mixer)(x)
            return [encode(x) for encode in self.encoders]
        single_group = len(self.encoders) == 1
        return [
            encode(x if single_group else x[list(group)])
            for encode, group in zip(self.encoders, self.spec.groups, strict=True)
        ]

    def mix(self, codes: list[Tensor]) -> list[Tensor]:
        """Mix codes into blocks, which are not yet of unit length."""
        if self.spec.mixing in ("none", "attention_latents"):
            return codes
        mixed: Tensor = cast(nn.Module, self.mixer)(codes)
        return [mixed]

    def blocks(self, latents: Tensor) -> list[Tensor]:
        """[blocks of the group, text, width] unit vectors of each group of blocks."""
        return [functional.normalize(block, dim=-1) for block in self.mix(self.codes(latents))]

    def forward(self, latents: Tensor) -> Tensor:
        """Turn [reading, text, dim] latents into [text, size] vectors of unit length."""
        return self.join(self.blocks(latents))

    def join(self, blocks: list[Tensor]) -> Tensor:
        """Join blocks into one vector; the dot product of two vectors is the weighted sum of their blocks' cosines."""
        roots = self.pair.weights().sqrt()[torch.argsort(self.block_order)]
        groups, begin = [], 0
        for block in blocks:
            weighted = block * roots[begin : begin + len(block), None, None].to(block.dtype)
            groups.append(weighted.transpose(0, 1).flatten(1))
            begin += len(block)
        return torch.cat(groups, dim=1)

    def split(self, vectors: Tensor) -> list[Tensor]:
        """Split stored vectors into unit blocks, in the dtype of the vectors: the inverse of `join`."""
        groups, begin = [], 0
        for count, width in self.spec.block_groups:
            group = vectors[:, begin : begin + count * width].reshape(-1, count, width)
            groups.append(functional.normalize(group, dim=-1).transpose(0, 1))
            begin += count * width
        return groups

    def cosines(self, left: list[Tensor], right: list[Tensor]) -> Tensor:
        """[pair, block] cosines, in the order of the readings."""
        return self.in_reading_order(torch.cat([(a * b).sum(dim=-1) for a, b in zip(left, right, strict=True)])).T

    def in_reading_order(self, by_block: Tensor) -> Tensor:
        """Reorder [block, ...] values from the order of the blocks to that of the readings."""
        return by_block[self.block_order.to(by_block.device)]

    def pair_cosines(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair, block] cosines of two batches of latents."""
        blocks = self.blocks(torch.cat([left, right], dim=1))
        half = left.shape[1]
        return self.cosines([block[:, :half] for block in blocks], [block[:, half:] for block in blocks])

    def score(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair] scores of two batches of latents ([pair, block] with the head "each")."""
        scores: Tensor = self.pair(self.pair_cosines(left, right))
        return scores

    def select_readings(self, readings: Sequence[int]) -> CodeNet:
        """Return the network of only these readings, in this order, with the head "sum" over them."""
        spec = replace(self.spec, widths=tuple(self.spec.widths[reading] for reading in readings), head="sum")
        net = CodeNet(spec).to(self.shift.device)
        for name in ("shift", "scale", "deviation"):
            getattr(net, name).copy_(getattr(self, name)[list(readings)])
        for group, encoder in zip(spec.groups, net.encoders, strict=True):
            index, old_group = next((i, g) for i, g in enumerate(self.spec.groups) if readings[group[0]] in g)
            rows = [old_group.index(readings[reading]) for reading in group]
            state = {name: tensor[rows] for name, tensor in self.encoders[index].state_dict().items()}
            encoder.load_state_dict(state)
        if isinstance(self.pair, SumHead) and isinstance(net.pair, SumHead):
            net.pair.logits.data.copy_(self.pair.logits.data[list(readings)])
        return net

    def count_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


class LayerwiseLinear(nn.Module):
    """One nn.Linear per layer: [layer, text, in_features] -> [layer, text, out_features]."""

    def __init__(self, layers: int, in_features: int, out_features: int, *, orthogonal: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(layers, 1, out_features))
        for matrix in self.weight.data:
            if orthogonal:  # angles between inputs survive, so an untrained encoder is as good as its input
                nn.init.orthogonal_(matrix)
            else:
                nn.init.uniform_(matrix, -1 / math.sqrt(in_features), 1 / math.sqrt(in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers in one batched product."""
        return torch.baddbmm(self.bias, x, self.weight)


class LayerwiseNorm(nn.Module):
    """One nn.LayerNorm per layer."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(layers, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each vector to mean 0 and variance 1, then apply the layer's scale and shift."""
        return functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class LayerwiseMLP(nn.Module):
    """One MLP per layer: hidden layers with norm and GELU, or a linear map where there are none.

    With a shortcut the hidden path starts at zero: the network begins as a linear map that keeps angles, and learns
    only the nonlinear part.

    Args:
        layers: Number of layers.
        sizes: Widths of the input, of each hidden layer, and of the output.
        shortcut: Add a linear path around the hidden layers.
        dropout: Dropout behind each hidden layer.
    """

    def __init__(self, layers: int, sizes: tuple[int, ...], *, shortcut: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        in_features, *hidden, out_features = sizes
        widths = [in_features, *hidden]
        self.hidden = nn.ModuleList(LayerwiseLinear(layers, a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(LayerwiseNorm(layers, width) for width in hidden)
        self.last = LayerwiseLinear(layers, widths[-1], out_features, orthogonal=not hidden)
        self.shortcut = (
            LayerwiseLinear(layers, in_features, out_features, orthogonal=True) if shortcut and hidden else None
        )
        self.dropout = dropout
        if self.shortcut is not None:
            nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[layer, text, in_features] -> [layer, text, out_features]."""
        y: Tensor = x
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            y = functional.dropout(functional.gelu(norm(linear(y))), self.dropout, self.training)
        y = self.last(y)
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return y


def spread_widths(widths: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Assign a width to each of `count` layers: (256, 512) gives 256 to the lower and 512 to the upper half.

    Where the count is not divisible, the upper groups are the smaller ones.
    """
    bounds = [count - (count * (len(widths) - group)) // len(widths) for group in range(len(widths) + 1)]
    return tuple(width for group, width in enumerate(widths) for _ in range(bounds[group + 1] - bounds[group]))


class _Attention(nn.Module):
    """Learned queries, each with its own softmax-weighted mean over the readings of a text."""

    def __init__(self, queries: int, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width) / width)

    def forward(self, codes: Tensor | list[Tensor]) -> Tensor:
        """[reading, text, width] -> [query, text, width]."""
        x = codes if isinstance(codes, Tensor) else codes[0]
        weights = torch.einsum("qw,rtw->qtr", self.queries, x).softmax(dim=-1)
        return torch.einsum("qtr,rtw->qtw", weights, x)


class _Unified(nn.Module):
    """All codes projected up to one width, and summed."""

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        self.up = nn.ModuleList(
            LayerwiseLinear(len(group), spec.widths[group[0]] or spec.dim, spec.mixed_width) for group in spec.groups
        )

    def forward(self, codes: list[Tensor]) -> Tensor:
        """Groups of [reading, text, width] -> [1, text, mixed width]."""
        sums = [up(code).sum(dim=0, keepdim=True) for up, code in zip(self.up, codes, strict=True)]
        return torch.stack(sums).sum(dim=0)


def _make_encoder(spec: CodeSpec, count: int, width: int) -> nn.Module:
    if not width:
        return nn.Identity()
    sizes = (spec.dim, *([spec.hidden] * spec.depth if spec.hidden else []), width)
    return LayerwiseMLP(count, sizes, shortcut=spec.shortcut, dropout=spec.dropout)


def _make_mixer(spec: CodeSpec) -> nn.Module | None:
    if spec.mixing == "unified":
        return _Unified(spec)
    if spec.mixing == "attention_codes":
        return _Attention(spec.mixed_width, spec.widths[0] or spec.dim)
    return _Attention(spec.mixed_width, spec.dim) if spec.mixing == "attention_latents" else None
