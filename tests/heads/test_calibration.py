"""Calibration: rising, between 0 and 1, exactly 1 for equal texts, and near scipy's isotonic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from decoder2vec.heads.calibration import Calibration


def cosines_and_scores(count=400):
    """Cosines that are too high for what people say, with noise."""
    predicted = np.random.default_rng(0).uniform(0.3, 1.0, count)
    noise = np.random.default_rng(1).normal(0, 0.05, count)
    return predicted, np.clip(((predicted - 0.3) / 0.7) ** 2 + noise, 0, 1)


def zeros_below(count=400):
    """Half of the pairs have a score of 0: the lowest steps are flat."""
    predicted = np.linspace(-0.2, 0.9, count)
    return predicted, np.clip(predicted - 0.4, 0, 1)


def ones_above(count=400):
    """The uppermost steps are flat at 1."""
    predicted = np.linspace(0.0, 0.9, count)
    return predicted, np.clip(predicted * 2, 0, 1)


def falling(count=400):
    """Predictions that are wrong: the best rising line is one flat step."""
    predicted = np.linspace(0.1, 0.8, count)
    return predicted, 1 - predicted


def few():
    return np.array([0.2, 0.9, 0.5, 0.7]), np.array([0.1, 0.8, 0.5, 0.4])


def all_the_same(count=50):
    return np.full(count, 0.5), np.linspace(0, 1, count)


def all_equal_texts(count=50):
    return np.ones(count), np.ones(count)


CASES = [cosines_and_scores, zeros_below, ones_above, falling, few, all_the_same, all_equal_texts]


@pytest.mark.parametrize("top", [1.0, None])
@pytest.mark.parametrize("case", CASES)
def test_scores_lie_between_0_and_1_and_keep_the_order_of_distinct_raw_scores(case, top):
    calibrate = Calibration.fit(*case(), top=top)
    raw = np.unique(np.concatenate([np.linspace(-1, 1, 4001), case()[0]]).astype(np.float32))
    scores = calibrate(torch.from_numpy(raw)).numpy()
    assert scores.shape == raw.shape
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores) > 0).all()


def test_neighbouring_float32_scores_do_not_tie_on_a_flat_step():
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


def test_the_raw_score_of_equal_texts_may_be_another():
    predicted, target = cosines_and_scores()
    calibrate = Calibration.fit(4 * predicted, target, top=4.0)
    assert calibrate(torch.tensor([4.0])).item() == 1
    np.testing.assert_allclose(
        calibrate(torch.from_numpy(4 * predicted)),
        Calibration.fit(predicted, target)(torch.from_numpy(predicted)),
        atol=2e-3,
    )


def test_scores_far_outside_stay_within_0_and_1_in_order():
    calibrate = Calibration.fit(*cosines_and_scores())
    scores = calibrate(torch.tensor([-100.0, -50.0, -3.0, -2.0, 1.0, 2.0])).tolist()
    assert scores[:4] == sorted(set(scores[:4]))
    assert min(scores) >= 0
    assert scores[4:] == [1.0, 1.0]


@pytest.mark.parametrize("top", [1.0, None])
def test_scores_are_near_scipys_isotonic_regression(top):
    predicted, target = cosines_and_scores(2000)
    order = np.argsort(predicted)
    expected = isotonic_regression(target[order]).x
    found = Calibration.fit(predicted, target, top=top)(torch.from_numpy(predicted[order])).numpy()
    inside = slice(60, -130)  # the ends bend towards the last knots
    assert np.abs(found - expected)[inside].mean() < 0.015
    assert np.abs(found - expected)[inside].max() < 0.06
    assert np.abs(found - target[order]).mean() < np.abs(predicted[order] - target[order]).mean() / 2


def test_a_wrong_order_becomes_a_flat_step_at_the_mean():
    predicted, target = falling()
    found = Calibration.fit(predicted, target, top=None)(torch.from_numpy(predicted)).numpy()
    np.testing.assert_allclose(found, target.mean(), atol=2e-3)


def test_the_order_of_the_pairs_does_not_matter():
    predicted, target = cosines_and_scores()
    shuffled = np.random.default_rng(2).permutation(len(predicted))
    again = Calibration.fit(predicted[shuffled], target[shuffled])
    np.testing.assert_allclose(again.to_tensor(), Calibration.fit(predicted, target).to_tensor())


def test_without_knots_scores_are_only_kept_between_0_and_1():
    raw = torch.tensor([-0.5, 0.0, 0.25, 1.0, 1.5])
    assert Calibration()(raw).tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_any_shape_is_scored_element_by_element():
    calibrate = Calibration.fit(*cosines_and_scores())
    raw = torch.rand(3, 4)
    torch.testing.assert_close(calibrate(raw).flatten(), calibrate(raw.flatten()))
    assert calibrate(raw[1, 2]).item() == calibrate(raw)[1, 2].item()


@pytest.mark.parametrize("calibrate", [Calibration.fit(*cosines_and_scores()), Calibration()])
def test_knots_survive_the_way_through_a_tensor(calibrate):
    assert Calibration.from_tensor(calibrate.to_tensor()) == calibrate
