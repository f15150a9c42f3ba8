"""Interpolation of tensors: the weighted mean, and slerp against the formula in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.maths.interpolation import interpolate


def slerp(first, second, share):
    """Between two arrays as vectors; `share` is that of the second."""
    cosine = (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second)
    angle = np.arccos(cosine)
    return (np.sin((1 - share) * angle) * first + np.sin(share * angle) * second) / np.sin(angle)


@pytest.fixture
def arrays():
    return list(np.random.default_rng(0).normal(size=(3, 4, 5)))


def as_tensors(arrays):
    return [torch.tensor(array) for array in arrays]


def test_linear_is_the_weighted_mean(arrays):
    merged = interpolate(as_tensors(arrays), [0.5, 0.3, 0.2])
    np.testing.assert_allclose(merged, np.average(arrays, axis=0, weights=[0.5, 0.3, 0.2]), atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_slerp_follows_the_formula(arrays, share):
    merged = interpolate(as_tensors(arrays[:2]), [1 - share, share], "slerp")
    np.testing.assert_allclose(merged, slerp(arrays[0], arrays[1], share), atol=1e-12)


def test_slerp_keeps_the_length_of_equally_long_vectors(arrays):
    first, second = (array / np.linalg.norm(array) for array in arrays[:2])
    merged = interpolate(as_tensors([first, second]), [0.4, 0.6], "slerp")
    assert float(merged.norm()) == pytest.approx(1)
    assert float(interpolate(as_tensors([first, second]), [0.4, 0.6]).norm()) < 0.99


@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0, -1.0])
def test_slerp_without_an_arc_is_linear(arrays, factor):
    """Of a vector and itself, a multiple of it, or zero."""
    merged = interpolate(as_tensors([arrays[0], factor * arrays[0]]), [0.7, 0.3], "slerp")
    np.testing.assert_allclose(merged, (0.7 + 0.3 * factor) * arrays[0], atol=1e-7)
