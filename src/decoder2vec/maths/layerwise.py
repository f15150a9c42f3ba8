"""Small networks, one for each layer, computed for all layers together.

Tensors are [layer, text, width]. Thirty small matrix products become one batched product, which is what makes
training thirty encoders cost about as much as training one.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


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
