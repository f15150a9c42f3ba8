"""Training losses: predictions and targets in, one number out, always in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.errors import InputError

_TINY = 1e-6
_COSENT_SCALE = 20.0


def mse(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return functional.mse_loss(predicted.float(), target.float())


def log_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Logarithm of the residuals' variance: a constant error is free, spread is not."""
    if len(predicted) < 2:
        raise InputError("The log-variance loss needs batches of 2 pairs or more: one residual has no variance.")
    return torch.log((predicted.float() - target.float()).var(correction=0) + _TINY)


def pearson_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - linear correlation; neither offset nor scale of the predictions matters."""
    if len(predicted) < 2:
        raise InputError("The Pearson loss needs batches of 2 pairs or more: one pair has no correlation.")
    p = predicted.float() - predicted.float().mean()
    t = target.float() - target.float().mean()
    spread = torch.linalg.vector_norm(p) * torch.linalg.vector_norm(t)
    correlation: Tensor = (p * t).sum() / spread.clamp_min(_TINY)
    return 1 - correlation


def cosent(predicted: Tensor, target: Tensor) -> Tensor:
    """Every two pairs that people order one way and the predictions the other way cost something."""
    p, t = predicted.float() * _COSENT_SCALE, target.float()
    wrong = (p[None, :] - p[:, None])[t[:, None] > t[None, :]]  # how far the lesser pair stands above the greater
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": mse,
    "log_variance": log_variance,
    "pearson": pearson_loss,
    "cosent": cosent,
}
