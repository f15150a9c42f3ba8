"""Training losses: predictions and targets in, one number out, always in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.errors import InputError

_TINY = 1e-6
_COSENT_SCALE = 20.0


def mse_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return functional.mse_loss(predicted.float(), target.float())


def log_variance_loss(predicted: Tensor, target: Tensor) -> Tensor:
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


def cosent_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Every two pairs that people order one way and the predictions the other way cost something."""
    p, t = predicted.float() * _COSENT_SCALE, target.float()
    wrong = (p[None, :] - p[:, None])[t[:, None] > t[None, :]]  # how far the lesser pair stands above the greater
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


SCORE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": mse_loss,
    "log_variance": log_variance_loss,
    "pearson": pearson_loss,
    "cosent": cosent_loss,
}

PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(left vectors [n, dim], right vectors [n, dim], scores [n] from 0 to 1) -> loss."""

_TINY_NORM = 1e-12


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: float = 0.05,
    symmetric: bool = False,
    masked: Tensor | None = None,
) -> Tensor:
    """Each anchor must find its positive among the candidates, which are those of the whole batch.

    Candidates are the n positives, then the first negative of each anchor, then the second of each: `negatives` is
    [n, m, dim]. `masked` [n, candidates] is True where a candidate must not count against an anchor, being one more
    positive of it or a negative that is missing; an anchor's own positive always counts.

    The loss is MultipleNegativesRankingLoss of sentence-transformers with a scale of 1 / temperature. `symmetric` is
    its directions=("query_to_doc", "doc_to_query") and partition_mode="per_direction", which is also
    MultipleNegativesSymmetricRankingLoss: the mean of the loss and of the one with which each positive must find its
    anchor among all anchors. Negatives take part in the first only.
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives.transpose(0, 1).flatten(0, 1)])
    scores = _all_cosines(anchors, candidates) / temperature
    if masked is not None:
        own = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(masked & ~own, -torch.inf)
    wanted = torch.arange(len(anchors), device=scores.device)
    loss = functional.cross_entropy(scores, wanted)
    if not symmetric:
        return loss
    return (loss + functional.cross_entropy(scores[:, : len(anchors)].T, wanted)) / 2


def cosent_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Every two pairs that people order one way and the cosines the other way cost something."""
    return cosent_loss(_cosines(left, right), scores)


def angle_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """CoSENT on |cosine + sine|, which still has a slope where the cosine is flat; AnglELoss of sentence-transformers.

    For the sine, half a vector is the real and half the imaginary part of a complex one. It changes its sign when left
    and right change places, so the loss is not symmetric.
    """
    a, b = _even(_unit(left)), _even(_unit(right))
    (real_a, imaginary_a), (real_b, imaginary_b) = a.chunk(2, dim=-1), b.chunk(2, dim=-1)
    sines = (imaginary_a * real_b - real_a * imaginary_b).sum(dim=-1)
    return cosent_loss(((a * b).sum(dim=-1) + sines).abs(), scores)


def cosine_mse_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Mean squared error of the cosines; CosineSimilarityLoss of sentence-transformers."""
    return mse_loss(_cosines(left, right), scores)


PAIR_LOSSES: dict[str, PairLoss] = {
    "cosent": cosent_pair_loss,
    "angle": angle_pair_loss,
    "cosine_mse": cosine_mse_pair_loss,
}


def matryoshka_loss(objective: Callable[..., Tensor], dims: Sequence[int]) -> Callable[..., Tensor]:
    """The sum of an objective over its vectors cut to the first of their dimensions, once for each of `dims`.

    The beginning of a vector then is a vector in its own right. The sum is MatryoshkaLoss of sentence-transformers
    with its weights of 1. The full width counts only if it is one of `dims`.
    """
    if not dims or min(dims) < 1:
        raise InputError(f"Matryoshka dimensions are one or more numbers above 0, not {list(dims)}.")

    def summed(*given: Any, **named: Any) -> Tensor:
        parts = [
            objective(*(_cut(each, dim) for each in given), **{name: _cut(each, dim) for name, each in named.items()})
            for dim in dims
        ]
        return torch.stack(parts).sum()

    return summed


def _cut(given: Any, dim: int) -> Any:
    """Vectors lose the dimensions after the first `dim`; scores, masks and numbers stay whole."""
    if not isinstance(given, Tensor) or given.ndim < 2 or not given.is_floating_point():
        return given
    if dim > given.shape[-1]:
        raise InputError(f"The vectors have {given.shape[-1]} dimensions; lower the Matryoshka dimension {dim} to fit.")
    return given[..., :dim]


def _cosines(left: Tensor, right: Tensor) -> Tensor:
    return (_unit(left) * _unit(right)).sum(dim=-1)


def _all_cosines(left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):  # it would make the product one of 16-bit vectors
        return _unit(left) @ _unit(right).T


def _unit(vectors: Tensor) -> Tensor:
    """Unit vectors in float32; zeros stay zeros and get no gradient, which a tiny divisor would make enormous."""
    vectors = vectors.float()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths.masked_fill(lengths < _TINY_NORM, torch.inf)


def _even(vectors: Tensor) -> Tensor:
    """An odd width gets one zero more."""
    return functional.pad(vectors, (0, vectors.shape[-1] % 2))
