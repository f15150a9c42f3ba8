"""Pooling: token states to one vector per text, for several poolings at once.

The pooled span of each row is a half-open range of positions, so the same code serves padding on either side, templates
with a prefix, and texts that are repeated. Sums are computed in float32, whatever the dtype of the states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

POOLINGS = ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
"""`lasttoken` and `cls` take the last or first token of the span; `weightedmean` weights token i of it by i + 1."""

_LINEAR = ("mean", "weightedmean", "sum")


class Pooler:
    """Pools every layer of one batch; whatever depends on the spans alone is computed once.

    Args:
        start: [batch] first position of each span.
        end: [batch] position after the last one.
        width: Number of positions in a row.
        poolings: Names from POOLINGS, in the order of the output.

    """

    def __init__(self, start: Tensor, end: Tensor, width: int, poolings: Sequence[str]) -> None:
        self.poolings = poolings
        self.start, self.last = start, end - 1
        self.rows = torch.arange(len(start), device=start.device)
        self.linear = [name for name in poolings if name in _LINEAR]
        if self.linear:
            self.weights = torch.stack([_weights(name, width, start, end) for name in self.linear], dim=1)
        if "max" in poolings:
            self.outside = ~_inside_span(width, start, end).unsqueeze(-1)

    def __call__(self, states: Tensor) -> Tensor:
        """[batch, token, dim] states to [batch, pooling, dim] float32 vectors."""
        if self.linear == list(self.poolings):
            return torch.bmm(self.weights, states.float())
        pooled: dict[str, Tensor] = {}
        if self.linear:
            pooled.update(zip(self.linear, torch.bmm(self.weights, states.float()).unbind(1), strict=True))
        if "lasttoken" in self.poolings:
            pooled["lasttoken"] = states[self.rows, self.last].float()
        if "cls" in self.poolings:
            pooled["cls"] = states[self.rows, self.start].float()
        if "max" in self.poolings:
            pooled["max"] = states.masked_fill(self.outside, float("-inf")).amax(dim=1).float()
        return torch.stack([pooled[name] for name in self.poolings], dim=1)


class PackedPooler:
    """Pools every layer of texts that are packed into one row, like `Pooler`.

    Args:
        start: [text] first position of each span in the row.
        end: [text] position after the last one.
        boundaries: [text + 1] positions between texts.
        width: Number of positions in the row.
        poolings: Names from POOLINGS, in the order of the output.

    """

    def __init__(self, start: Tensor, end: Tensor, boundaries: Tensor, width: int, poolings: Sequence[str]) -> None:
        self.poolings, self.start, self.last = poolings, start, end - 1
        self.lengths = boundaries.diff().long()
        text_of = torch.arange(len(start), device=start.device).repeat_interleave(self.lengths, output_size=width)
        position = torch.arange(width, device=start.device) - start[text_of]
        self.outside = ((position < 0) | (position >= (end - start)[text_of])).unsqueeze(-1)
        self.weights = {name: self._weights(name, position, text_of) for name in poolings if name in _LINEAR}

    def __call__(self, states: Tensor) -> Tensor:
        """[1, token, dim] states to [text, pooling, dim] float32 vectors."""
        return torch.stack([self._pool(name, states[0]) for name in self.poolings], dim=1)

    def _pool(self, name: str, states: Tensor) -> Tensor:
        if name == "lasttoken":
            return states[self.last].float()
        if name == "cls":
            return states[self.start].float()
        if name == "max":
            return self._reduce("max", states.float().masked_fill(self.outside, float("-inf")))
        return self._reduce("sum", states.float() * self.weights[name])

    def _reduce(self, operation: str, states: Tensor) -> Tensor:
        """One row for each text; unsafe means that lengths are not checked, for which a GPU would have to wait."""
        return torch.segment_reduce(states, operation, lengths=self.lengths, axis=0, unsafe=True)

    def _weights(self, name: str, position: Tensor, text_of: Tensor) -> Tensor:
        """[token, 1] weights whose sum with the states over a text is the pooled vector."""
        inside = (~self.outside).float()
        if name == "sum":
            return inside
        weights = inside * (position + 1).unsqueeze(-1) if name == "weightedmean" else inside
        return weights / self._reduce("sum", weights)[text_of]


class ChunkPooler(PackedPooler):
    """Pools every layer of chunks, each a set of tokens in a row of the batch, like `Pooler`.

    Args:
        rows: [token] row of each token of each chunk, one chunk after the other.
        positions: [token] position in the row.
        boundaries: [chunks + 1] positions between chunks among the tokens.
        poolings: Names from POOLINGS, in the order of the output.

    """

    def __init__(self, rows: Tensor, positions: Tensor, boundaries: Tensor, poolings: Sequence[str]) -> None:
        super().__init__(boundaries[:-1], boundaries[1:], boundaries, len(rows), poolings)
        self._rows, self._positions = rows, positions

    def __call__(self, states: Tensor) -> Tensor:
        """[batch, token, dim] states to [chunk, pooling, dim] float32 vectors."""
        return super().__call__(states[self._rows, self._positions][None])


def pool(states: Tensor, start: Tensor, end: Tensor, poolings: Sequence[str]) -> Tensor:
    """[batch, token, dim] states and [batch] span bounds to [batch, pooling, dim] float32 vectors."""
    return Pooler(start, end, states.shape[1], poolings)(states)


def _inside_span(width: int, start: Tensor, end: Tensor) -> Tensor:
    """[batch, width] booleans: is the position inside the span?"""
    position = torch.arange(width, device=start.device)
    return (position >= start.unsqueeze(1)) & (position < end.unsqueeze(1))


def _weights(name: str, width: int, start: Tensor, end: Tensor) -> Tensor:
    """[batch, width] float32 weights whose product with the states is the pooled vector."""
    weights = _inside_span(width, start, end).float()
    if name == "sum":
        return weights
    if name == "weightedmean":
        weights = weights * (torch.arange(1, width + 1, device=start.device) - start.unsqueeze(1))
    return weights / weights.sum(dim=1, keepdim=True)
