"""Training losses as functions: on predicted scores, on pairs of vectors, InfoNCE, and Matryoshka around any of them.

Every loss is computed in float32, whatever the dtype of its inputs and whether autocast is on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.errors import InputError

ScoreLoss = Callable[[Tensor, Tensor], Tensor]
"""(predicted scores [n], target scores [n]) -> loss."""
PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(left vectors [n, dim], right vectors [n, dim], target scores [n] from 0 to 1) -> loss."""

_EPSILON = 1e-6
_MIN_NORM = 1e-12
"""Vectors shorter than this count as zero."""
_COSENT_SCALE = 20.0


# --- losses on predicted scores --------------------------------------------------------------------------------------


def mse_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return functional.mse_loss(predicted.float(), target.float())


def log_variance_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Logarithm of the variance of the residuals; a constant error costs nothing."""
    if len(predicted) < 2:
        raise InputError("The log-variance loss needs batches of 2 pairs or more: one residual has no variance.")
    return torch.log((predicted.float() - target.float()).var(correction=0) + _EPSILON)


def pearson_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - Pearson correlation; neither offset nor scale of the predictions matters."""
    if len(predicted) < 2:
        raise InputError("The Pearson loss needs batches of 2 pairs or more: one pair has no correlation.")
    p = predicted.float() - predicted.float().mean()
    t = target.float() - target.float().mean()
    norms = torch.linalg.vector_norm(p) * torch.linalg.vector_norm(t)
    correlation: Tensor = (p * t).sum() / norms.clamp_min(_EPSILON)
    return 1 - correlation


def cosent_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """CoSENT ranking loss: log(1 + sum of exp(20 (p_j - p_i)) over all i, j with target_i > target_j)."""
    p, t = predicted.float() * _COSENT_SCALE, target.float()
    differences = (p[None, :] - p[:, None])[t[:, None] > t[None, :]]  # positive where two scores are in the wrong order
    return torch.logsumexp(torch.cat([differences.new_zeros(1), differences]), dim=0)


SCORE_LOSSES: dict[str, ScoreLoss] = {
    "mse": mse_loss,
    "log_variance": log_variance_loss,
    "pearson": pearson_loss,
    "cosent": cosent_loss,
}
"""Losses on predicted scores by name."""


# --- losses on pairs of vectors --------------------------------------------------------------------------------------


def cosent_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """CoSENT on the cosines of the pairs; CoSENTLoss of sentence-transformers."""
    return cosent_loss(_pairwise_cosines(left, right), scores)


def angle_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """CoSENT on |cosine + sine|, which has a gradient where the cosine is flat; AnglELoss of sentence-transformers.

    For the sine, the first half of a vector is the real part of a complex vector and the second half the imaginary
    part. The sine changes its sign when left and right are swapped, so the loss is not symmetric.
    """
    a, b = _pad_to_even_width(_normalise(left)), _pad_to_even_width(_normalise(right))
    (real_a, imaginary_a), (real_b, imaginary_b) = a.chunk(2, dim=-1), b.chunk(2, dim=-1)
    sines = (imaginary_a * real_b - real_a * imaginary_b).sum(dim=-1)
    return cosent_loss(((a * b).sum(dim=-1) + sines).abs(), scores)


def cosine_mse_pair_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Mean squared error of the cosines; CosineSimilarityLoss of sentence-transformers."""
    return mse_loss(_pairwise_cosines(left, right), scores)


PAIR_LOSSES: dict[str, PairLoss] = {
    "cosent": cosent_pair_loss,
    "angle": angle_pair_loss,
    "cosine_mse": cosine_mse_pair_loss,
}
"""Losses on scored pairs of vectors by name."""


# --- contrastive and Matryoshka --------------------------------------------------------------------------------------


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: float = 0.05,
    symmetric: bool = False,
    masked: Tensor | None = None,
) -> Tensor:
    """InfoNCE with in-batch negatives: cross-entropy of each anchor's own positive among all candidates of the batch.

    This is MultipleNegativesRankingLoss of sentence-transformers with a scale of 1 / temperature.

    Args:
        anchors: [n, dim] vectors.
        positives: [n, dim] vectors, one for each anchor.
        negatives: [n, m, dim] hard negatives. The candidates are the n positives, then the first negative of each
            anchor, then the second of each, and so on.
        temperature: What the cosines are divided by.
        symmetric: Average the loss with the one of positives that search their anchor among all anchors; hard
            negatives take part in the first only. This is directions=("query_to_doc", "doc_to_query") with
            partition_mode="per_direction", and also MultipleNegativesSymmetricRankingLoss.
        masked: [n, candidates] booleans, True where a candidate does not count as a negative of an anchor: it is
            another positive of it, or a missing negative. An anchor's own positive always counts.

    """
    scores = _cosine_matrix(anchors, _candidates(positives, negatives)) / temperature
    if masked is not None:
        own_positive = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(masked & ~own_positive, -torch.inf)
    targets = torch.arange(len(anchors), device=scores.device)
    loss = functional.cross_entropy(scores, targets)
    if not symmetric:
        return loss
    return (loss + functional.cross_entropy(scores[:, : len(anchors)].T, targets)) / 2


def ranking_loss(scores: Tensor, missing: Tensor) -> Tensor:
    """Mean cross-entropy of the positive among its own negatives, which are not shared between queries.

    Args:
        scores: [queries, 1 + negatives], the positive first.
        missing: [queries, 1 + negatives] where a query has fewer negatives than others.
    """
    return -torch.log_softmax(scores.masked_fill(missing, -torch.inf), dim=1)[:, 0].mean()


def margin_mse(scores: Tensor, targets: Tensor) -> Tensor:
    """MarginMSE: mean squared difference of the margins of a positive over its negatives from those of a teacher.

    Args:
        scores: [queries, 1 + negatives], the positive first.
        targets: What the teacher gave them; NaN where it gave nothing.
    """
    differences = (scores[:, :1] - scores[:, 1:]) - (targets[:, :1] - targets[:, 1:])
    known = ~differences.isnan()
    return differences[known].square().mean() if known.any() else scores.sum() * 0


def margin_kl(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None,
    *,
    teacher: Tensor,
    temperature: float = 0.05,
    masked: Tensor | None = None,
) -> Tensor:
    """KL divergence of a model's similarities from a teacher's, each a softmax over the candidates of an anchor.

    mean over anchors of sum_j p_j (log p_j - log q_j), p = softmax(teacher / t), q = softmax(cosines / t). A softmax
    depends on differences only: the model learns the teacher's margins between candidates, not its similarities.

    Args:
        anchors: [n, dim] vectors.
        positives: [n, dim] vectors, one for each anchor.
        negatives: [n, m, dim] hard negatives; candidates are in the order of `info_nce`.
        teacher: [n, candidates] similarities that the teacher gives to each anchor and each candidate.
        temperature: t above.
        masked: [n, candidates] booleans, True where there is no candidate.

    """
    scores = _cosine_matrix(anchors, _candidates(positives, negatives)) / temperature
    targets = teacher.float() / temperature
    if masked is None:
        masked = torch.zeros_like(scores, dtype=torch.bool)
    student, target = (
        functional.log_softmax(side.masked_fill(masked, -torch.inf), dim=1).masked_fill(masked, 0)
        for side in (scores, targets)
    )
    weights = target.exp().masked_fill(masked, 0)
    return (weights * (target - student)).sum(dim=1).mean()


def matryoshka_loss(loss: Callable[..., Tensor], dims: Sequence[int]) -> Callable[..., Tensor]:
    """Wrap a loss: sum it over its vectors truncated to each of `dims` (MatryoshkaLoss with weights of 1).

    The first dimensions of a vector are trained to be a usable vector of their own. The full width counts only if it
    is one of `dims`.
    """
    if not dims or min(dims) < 1:
        raise InputError(f"Matryoshka dimensions are one or more numbers above 0, not {list(dims)}.")

    def total(*args: Any, **kwargs: Any) -> Tensor:
        losses = [
            loss(
                *(_truncate(value, dim) for value in args),
                **{name: _truncate(value, dim) for name, value in kwargs.items()},
            )
            for dim in dims
        ]
        return torch.stack(losses).sum()

    return total


def _truncate(value: Any, dim: int) -> Any:
    """Keep the first `dim` dimensions of vectors; return scores, masks and numbers unchanged."""
    if not isinstance(value, Tensor) or value.ndim < 2 or not value.is_floating_point():
        return value
    if dim > value.shape[-1]:
        raise InputError(f"The vectors have {value.shape[-1]} dimensions; lower the Matryoshka dimension {dim} to fit.")
    return value[..., :dim]


def _candidates(positives: Tensor, negatives: Tensor | None) -> Tensor:
    """[n (1 + m), dim] all positives, then all first negatives, all second ones, and so on."""
    return positives if negatives is None else torch.cat([positives, negatives.transpose(0, 1).flatten(0, 1)])


def _pairwise_cosines(left: Tensor, right: Tensor) -> Tensor:
    return (_normalise(left) * _normalise(right)).sum(dim=-1)


def _cosine_matrix(left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):  # autocast would multiply the vectors in 16 bits
        return _normalise(left) @ _normalise(right).T


def _normalise(vectors: Tensor) -> Tensor:
    """Unit vectors in float32; zero vectors stay zero and get no gradient, which a tiny divisor would make huge."""
    vectors = vectors.float()
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norms.masked_fill(norms < _MIN_NORM, torch.inf)


def _pad_to_even_width(vectors: Tensor) -> Tensor:
    return functional.pad(vectors, (0, vectors.shape[-1] % 2))


def round_trip(vectors: Tensor, precision: str) -> Tensor:
    """[texts, dim] vectors as they are after `quantise`; gradients pass as if nothing had been rounded.

    Args:
        vectors: A batch of vectors; int8 takes the range of each dimension from it, as `quantise` does.
        precision: "int8", or "binary": the signs, times the mean absolute value of the vector.
    """
    with torch.no_grad():
        if precision == "binary":
            rounded = torch.where(vectors > 0, 1.0, -1.0) * vectors.abs().mean(dim=1, keepdim=True)
        else:
            low, high = vectors.amin(dim=0), vectors.amax(dim=0)
            step = torch.where(high > low, (high - low) / 255, torch.ones_like(low))
            rounded = low + step * ((vectors - low) / step).floor().clamp(0, 255)
    return vectors + (rounded - vectors).detach()


def spread_out(vectors: Tensor) -> Tensor:
    """Spread-out regulariser: cosines of different texts should be distributed like those of random directions.

    Zhang, Yu, Kumar and Chang, 2017: the squared mean of the cosines, plus the excess of their second moment over
    1 / dim, that of random directions.
    """
    unit = _normalise(vectors)
    count, dim = unit.shape
    if count < 2:  # one text has no other to be away from
        return vectors.new_zeros(())
    cosines = (unit @ unit.T)[~torch.eye(count, dtype=torch.bool, device=unit.device)]
    return cosines.mean().square() + (cosines.square().mean() - 1 / dim).clamp_min(0)


def remaining_choices(scores: Tensor, counts: Tensor) -> Tensor:
    """[text, step, item] log-probabilities of the items that are left at each step of putting items in order.

    Steps and items are in the true order, so that item n is right at step n, and the items before it are used. The
    log-probability of the true order is the sum of the diagonal.

    Args:
        scores: [text, step, item] scores, padded.
        counts: [text] number of items.

    Returns:
        Log-probabilities; -inf for items that are used or padding, and 0 in the rows of padded steps.
    """
    steps = torch.arange(scores.shape[1], device=scores.device)
    is_left = (steps[:, None] <= steps) & (steps < counts[:, None, None])
    is_step = (steps < counts[:, None])[:, :, None]
    log_probabilities = scores.float().masked_fill(~is_left & is_step, -torch.inf).log_softmax(dim=-1)
    return torch.where(is_step, log_probabilities, 0.0)
