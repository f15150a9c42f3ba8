"""Interpolation of several vectors: the weighted mean, and for two vectors spherical interpolation (slerp)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

METHODS = ("linear", "slerp")

_PARALLEL = 1e-6
"""Below this sine of their angle, two vectors have no arc between them that could be computed."""


def interpolation_factors(products: Tensor, weights: Sequence[float], method: str = "linear") -> list[float]:
    """Factors with which vectors are summed.

    Args:
        products: [n, n] inner products of the n vectors.
        weights: n weights that sum to 1.
        method: "linear": the weights themselves. "slerp": sin(w angle) / sin(angle) for each of two vectors; the result
            of equally long vectors is as long as they are. If one is zero or both are parallel, slerp is linear.
    """
    if method == "linear":
        return list(weights)
    (first, dot), (_, second) = products.tolist()
    norms = math.sqrt(first * second)
    cosine = max(-1.0, min(1.0, dot / norms)) if norms else 1.0
    angle = math.acos(cosine)
    sine = math.sin(angle)
    return list(weights) if sine < _PARALLEL else [math.sin(weight * angle) / sine for weight in weights]


def interpolate(tensors: Sequence[Tensor], weights: Sequence[float], method: str = "linear") -> Tensor:
    """Interpolate tensors of one shape, each taken as one vector."""
    rows = [tensor.detach().flatten() for tensor in tensors]
    products = torch.zeros(len(rows), len(rows))
    if method != "linear":
        products = torch.stack([torch.stack([row @ other for other in rows]) for row in rows])
    factors = interpolation_factors(products, weights, method)
    merged = torch.zeros_like(rows[0])
    for factor, row in zip(factors, rows, strict=True):
        merged.add_(row, alpha=factor)
    return merged.view_as(tensors[0])
