"""Token states to one vector: every pooling a reading can ask for, computed together.

A pooled span is a half-open range of positions per row, so the same code serves padding on either side,
prompts with a prefix, and texts repeated twice. Sums are made in float32 whatever the states' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

POOLINGS = ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
"""`lasttoken` and `cls` pick the last or first token of the span; `weightedmean` weighs position i by i + 1."""

_LINEAR = ("mean", "weightedmean", "sum")


def pool(states: Tensor, start: Tensor, end: Tensor, poolings: Sequence[str]) -> Tensor:
    """[batch, token, dim] states and [batch] span bounds to [batch, pooling, dim] float32 vectors."""
    linear = [name for name in poolings if name in _LINEAR]
    pooled: dict[str, Tensor] = {}
    if linear:
        weights = torch.stack([_weights(name, states.shape[1], start, end) for name in linear], dim=1)
        pooled.update(zip(linear, torch.bmm(weights, states.float()).unbind(1), strict=True))
    rows = torch.arange(states.shape[0], device=states.device)
    if "lasttoken" in poolings:
        pooled["lasttoken"] = states[rows, end - 1].float()
    if "cls" in poolings:
        pooled["cls"] = states[rows, start].float()
    if "max" in poolings:
        outside = ~_inside(states.shape[1], start, end)
        pooled["max"] = states.masked_fill(outside.unsqueeze(-1), float("-inf")).amax(dim=1).float()
    return torch.stack([pooled[name] for name in poolings], dim=1)


def _inside(width: int, start: Tensor, end: Tensor) -> Tensor:
    """[batch, width] truth of "this position lies in the span"."""
    position = torch.arange(width, device=start.device)
    return (position >= start.unsqueeze(1)) & (position < end.unsqueeze(1))


def _weights(name: str, width: int, start: Tensor, end: Tensor) -> Tensor:
    """[batch, width] float32 weights whose product with the states is the pooled vector."""
    inside = _inside(width, start, end).float()
    if name == "sum":
        return inside
    if name == "weightedmean":
        rank = torch.arange(1, width + 1, device=start.device) - start.unsqueeze(1)
        inside = inside * rank
    return inside / inside.sum(dim=1, keepdim=True)
