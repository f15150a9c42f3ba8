"""Losses against numpy, plain loops and sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import CoSENTLoss

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import SCORE_LOSSES, cosent_loss, log_variance_loss, mse_loss, pearson_loss


def cosent_by_hand(predicted, target):
    """log(1 + sum of exp(20 * (lesser - greater))) over every two pairs that people order."""
    total = 1.0
    for p, t in zip(predicted, target, strict=True):
        for q, u in zip(predicted, target, strict=True):
            if t > u:
                total += math.exp(20 * (q - p))
    return math.log(total)


BY_HAND = {
    "mse": lambda p, t: ((p - t) ** 2).mean(),
    "log_variance": lambda p, t: np.log(np.var(p - t) + 1e-6),
    "pearson": lambda p, t: 1 - np.corrcoef(p, t)[0, 1],
    "cosent": cosent_by_hand,
}


@pytest.fixture
def pairs():
    """Predictions and targets on a grid that float16 and bfloat16 can say exactly; targets have ties."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 129, 40) / 128, rng.integers(0, 9, 40) / 8


def test_every_loss_has_a_reference_here():
    assert set(SCORE_LOSSES) == set(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_equal_numpy(name, pairs):
    predicted, target = map(torch.from_numpy, pairs)
    assert SCORE_LOSSES[name](predicted, target).item() == pytest.approx(BY_HAND[name](*pairs), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BY_HAND)
def test_16_bit_predictions_are_computed_in_float32(name, dtype, pairs):
    predicted, target = (torch.from_numpy(part).to(dtype) for part in pairs)
    loss = SCORE_LOSSES[name](predicted, target)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(BY_HAND[name](*pairs), rel=1e-5)


@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_equal_small_differences(name, pairs):
    at = torch.from_numpy(pairs[0][:6]).float().requires_grad_()
    SCORE_LOSSES[name](at, torch.from_numpy(pairs[1][:6])).backward()
    for place in range(6):
        step = np.eye(6)[place] * 1e-5
        up, down = (BY_HAND[name](pairs[0][:6] + sign * step, pairs[1][:6]) for sign in (1, -1))
        assert at.grad[place].item() == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("case", ["perfect", "constant predictions", "constant targets", "all the same"])
def test_loss_and_gradients_are_finite_where_nothing_is_left_to_learn(name, case):
    rising, flat = torch.linspace(0, 1, 8), torch.full((8,), 0.5)
    predicted = (rising if case in ("perfect", "constant targets") else flat).clone().requires_grad_()
    target = rising if case in ("perfect", "constant predictions") else flat
    loss = SCORE_LOSSES[name](predicted, target)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(predicted.grad).all()


def test_perfect_predictions_have_the_least_loss():
    target = torch.linspace(0, 1, 8)
    assert mse_loss(target, target).item() == 0
    assert pearson_loss(target, target).item() == pytest.approx(0, abs=1e-6)
    assert log_variance_loss(target, target).item() == pytest.approx(math.log(1e-6))
    assert cosent_loss(target * 10, target).item() == pytest.approx(0, abs=1e-6)


def test_a_constant_error_is_free_under_log_variance_and_not_under_mse(pairs):
    predicted, target = map(torch.from_numpy, pairs)
    torch.testing.assert_close(log_variance_loss(predicted + 0.25, target), log_variance_loss(predicted, target))
    assert mse_loss(target + 0.25, target).item() == pytest.approx(0.0625)


def test_neither_offset_nor_scale_matters_under_pearson(pairs):
    predicted, target = map(torch.from_numpy, pairs)
    torch.testing.assert_close(pearson_loss(3 * predicted - 7, target), pearson_loss(predicted, target))
    assert pearson_loss(-target, target).item() == pytest.approx(2)


@pytest.mark.parametrize("name", ["log_variance", "pearson"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_too_small_to_have_a_spread_is_refused(name, count):
    with pytest.raises(InputError, match="2 pairs or more"):
        SCORE_LOSSES[name](torch.zeros(count), torch.ones(count))


@pytest.mark.parametrize("name", ["mse", "cosent"])
def test_other_losses_take_a_single_pair(name):
    assert torch.isfinite(SCORE_LOSSES[name](torch.tensor([0.3]), torch.tensor([0.8])))


def test_cosent_equals_sentence_transformers():
    rng = np.random.default_rng(1)
    left, right = (torch.from_numpy(rng.normal(size=(25, 6))).float() for _ in range(2))
    target = torch.from_numpy(rng.integers(0, 6, 25) / 5).float()
    theirs = CoSENTLoss(model=None).compute_loss_from_embeddings([left, right], target)
    torch.testing.assert_close(cosent_loss(torch.cosine_similarity(left, right), target), theirs)


def test_cosent_of_far_wrong_predictions_does_not_overflow():
    loss = cosent_loss(torch.tensor([100.0, -100.0], dtype=torch.float16), torch.tensor([0.0, 1.0]))
    assert loss.item() == pytest.approx(4000)
