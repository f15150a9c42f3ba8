"""Tests of `decoder2vec.heads.calibration`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from decoder2vec.heads.calibration import Calibration


def cosines_and_scores(count=400):
    """Cosines that are higher than the human scores, with noise."""
    predicted = np.random.default_rng(0).uniform(0.3, 1.0, count)
    noise = np.random.default_rng(1).normal(0, 0.05, count)
    return predicted, np.clip(((predicted - 0.3) / 0.7) ** 2 + noise, 0, 1)


def zeros_below(count=400):
    """Many pairs have a score of 0: the lowest steps are flat."""
    predicted = np.linspace(-0.2, 0.9, count)
    return predicted, np.clip(predicted - 0.4, 0, 1)


def ones_above(count=400):
    """The uppermost steps are flat at 1."""
    predicted = np.linspace(0.0, 0.9, count)
    return predicted, np.clip(predicted * 2, 0, 1)


def falling(count=400):
    """Predictions in the wrong order: the best increasing function is one flat step."""
    predicted = np.linspace(0.1, 0.8, count)
    return predicted, 1 - predicted


def few_pairs():
    return np.array([0.2, 0.9, 0.5, 0.7]), np.array([0.1, 0.8, 0.5, 0.4])


def all_the_same(count=50):
    return np.full(count, 0.5), np.linspace(0, 1, count)


def all_equal_texts(count=50):
    return np.ones(count), np.ones(count)


CASES = [cosines_and_scores, zeros_below, ones_above, falling, few_pairs, all_the_same, all_equal_texts]


@pytest.mark.parametrize("top", [1.0, None])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_in_0_to_1_and_strictly_increasing(case, top):
    calibrate = Calibration.fit(*case(), top=top)
    raw = np.unique(np.concatenate([np.linspace(-1, 1, 4001), case()[0]]).astype(np.float32))
    scores = calibrate(torch.from_numpy(raw)).numpy()
    assert scores.shape == raw.shape
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores) > 0).all()


def test_adjacent_float32_scores_do_not_tie_on_a_flat_step():
    calibrate = Calibration.fit(*falling())
    low = np.float32(0.5)
    raw = torch.from_numpy(np.array([low, np.nextafter(low, np.float32(1))]))
    first, second = calibrate(raw).tolist()
    assert first < second


@pytest.mark.parametrize("case", CASES)
def test_equal_texts_score_exactly_one_and_others_less(case):
    calibrate = Calibration.fit(*case())
    assert calibrate(torch.tensor([1.0])).item() == 1
    assert calibrate(torch.tensor([0.99])).item() < 1


def test_raw_score_of_equal_texts_can_be_set():
    predicted, target = cosines_and_scores()
    calibrate = Calibration.fit(4 * predicted, target, top=4.0)
    assert calibrate(torch.tensor([4.0])).item() == 1
    np.testing.assert_allclose(
        calibrate(torch.from_numpy(4 * predicted)),
        Calibration.fit(predicted, target)(torch.from_numpy(predicted)),
        atol=2e-3,
    )


def test_extreme_raw_scores_stay_in_0_to_1_in_order():
    calibrate = Calibration.fit(*cosines_and_scores())
    scores = calibrate(torch.tensor([-100.0, -50.0, -3.0, -2.0, 1.0, 2.0])).tolist()
    assert scores[:4] == sorted(set(scores[:4]))
    assert min(scores) >= 0
    assert scores[4:] == [1.0, 1.0]


@pytest.mark.parametrize("top", [1.0, None])
def test_scores_are_close_to_isotonic_regression(top):
    predicted, target = cosines_and_scores(2000)
    order = np.argsort(predicted)
    expected = isotonic_regression(target[order]).x
    scores = Calibration.fit(predicted, target, top=top)(torch.from_numpy(predicted[order])).numpy()
    inner = slice(60, -130)  # the ends bend towards the outer knots
    assert np.abs(scores - expected)[inner].mean() < 0.015
    assert np.abs(scores - expected)[inner].max() < 0.06
    assert np.abs(scores - target[order]).mean() < np.abs(predicted[order] - target[order]).mean() / 2


def test_decreasing_targets_give_a_flat_step_at_the_mean():
    predicted, target = falling()
    scores = Calibration.fit(predicted, target, top=None)(torch.from_numpy(predicted)).numpy()
    np.testing.assert_allclose(scores, target.mean(), atol=2e-3)


def test_order_of_the_pairs_does_not_matter():
    predicted, target = cosines_and_scores()
    shuffled = np.random.default_rng(2).permutation(len(predicted))
    refitted = Calibration.fit(predicted[shuffled], target[shuffled])
    np.testing.assert_allclose(refitted.to_tensor(), Calibration.fit(predicted, target).to_tensor())


def test_scores_without_knots_are_clipped():
    raw = torch.tensor([-0.5, 0.0, 0.25, 1.0, 1.5])
    assert Calibration()(raw).tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_any_shape_is_scored_elementwise():
    calibrate = Calibration.fit(*cosines_and_scores())
    raw = torch.rand(3, 4)
    torch.testing.assert_close(calibrate(raw).flatten(), calibrate(raw.flatten()))
    assert calibrate(raw[1, 2]).item() == calibrate(raw)[1, 2].item()


@pytest.mark.parametrize("calibrate", [Calibration.fit(*cosines_and_scores()), Calibration()])
def test_knots_survive_a_round_trip_through_a_tensor(calibrate):
    assert Calibration.from_tensor(calibrate.to_tensor()) == calibrate
