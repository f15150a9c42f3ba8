"""Aggregators: one vector of several sources for each text or span, by mean, sum, attention or a linear map."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from decoder2vec.errors import InputError, unknown_name

KEY_DIM = 128
"""Size of the query and the keys of attention."""


class Aggregator(nn.Module, ABC):
    """Maps the vectors of k sources, [row, dim] each, to one [row, `dim`] tensor; rows do not mix."""

    dim: int
    """Dimension of the result."""

    @abstractmethod
    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Return [row, `dim`]."""

    def source_weights(self, sources: Sequence[Tensor]) -> Tensor | None:
        """Return [row, source] weights that sum to 1; None if the aggregator has none that depend on the input."""
        return None

    @property
    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


class Mean(Aggregator):
    """Mean of the sources; of one source, its vectors unchanged."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dim = _same_dim(dims)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the mean."""
        return torch.stack(list(sources)).mean(dim=0)


class Sum(Aggregator):
    """Sum of the sources."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dim = _same_dim(dims)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the sum."""
        return torch.stack(list(sources)).sum(dim=0)


class Attention(Aggregator):
    """Attention of one learned query over the sources, each with a key and a value projection of its own.

    The query is the same for every input. With one source its weight is 1, and this is a trained linear map: the value
    projection. Compare it with the control "base + linear", never with the plain mean alone.
    """

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dim = dims[0]
        self.query = nn.Parameter(torch.randn(KEY_DIM) / math.sqrt(KEY_DIM))
        self.keys = nn.ModuleList(nn.Linear(dim, KEY_DIM) for dim in dims)
        self.values = nn.ModuleList(nn.Linear(dim, self.dim) for dim in dims)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the values."""
        values = torch.stack([value(x) for value, x in zip(self.values, sources, strict=True)], dim=1)
        return torch.einsum("nk,nkd->nd", self.source_weights(sources), values)

    def source_weights(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the softmax over sources of query times key."""
        scores = torch.stack([key(x) @ self.query for key, x in zip(self.keys, sources, strict=True)], dim=1)
        return (scores / math.sqrt(KEY_DIM)).softmax(dim=1)


class ConcatLinear(Aggregator):
    """A linear map of the concatenated sources to the dimension of the first, or to another one."""

    def __init__(self, dims: Sequence[int], dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim or dims[0]
        self.map = nn.Linear(sum(dims), self.dim)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the mapped concatenation."""
        mapped: Tensor = self.map(torch.cat(list(sources), dim=1))
        return mapped


_AGGREGATORS: dict[str, type[Mean] | type[Sum] | type[Attention] | type[ConcatLinear]] = {
    "mean": Mean,
    "sum": Sum,
    "attention": Attention,
    "concat": ConcatLinear,
}
AGGREGATORS = tuple(_AGGREGATORS)


def make_aggregator(name: str, dims: Sequence[int]) -> Aggregator:
    """Return a new aggregator.

    Args:
        name: One of AGGREGATORS.
        dims: Dimension of each source.
    """
    if name not in _AGGREGATORS:
        raise unknown_name("aggregator", name, AGGREGATORS)
    return _AGGREGATORS[name](dims)


def linear_like(dim: int, n_parameters: int) -> ConcatLinear:
    """Return one linear layer on one source that has as many parameters as another aggregator, up to half a row.

    Args:
        dim: Dimension of the source.
        n_parameters: Parameters of the other aggregator.
    """
    return ConcatLinear([dim], max(1, round(n_parameters / (dim + 1))))


def _same_dim(dims: Sequence[int]) -> int:
    if len(set(dims)) > 1:
        sizes = " and ".join(map(str, dict.fromkeys(dims)))
        raise InputError(f"Sources of {sizes} dimensions have no mean or sum; combine them by attention or concat.")
    return dims[0]
