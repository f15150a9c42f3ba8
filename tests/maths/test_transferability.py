"""LogME equals the largest marginal likelihood that a general optimiser finds, and ranks features as it should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg, optimize, stats

from decoder2vec.maths.transferability import logme


def best_likelihood(x, y):
    """Largest log density of y under a Gaussian with covariance I / beta + x x^T / alpha, for each example."""

    def negative(logs):
        alpha, beta = np.exp(logs)
        covariance = np.eye(len(x)) / beta + x @ x.T / alpha
        return -stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y) / len(x)

    options = {"maxiter": 4000, "xatol": 1e-7, "fatol": 1e-11}
    starts = ([0, 0], [2, 1], [-2, 3])
    return -min(optimize.minimize(negative, start, method="Nelder-Mead", options=options).fun for start in starts)


@pytest.mark.parametrize(("n", "dim"), [(60, 5), (40, 40), (25, 70)])
def test_logme_equals_a_general_optimiser(n, dim):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, dim)) * rng.uniform(0.1, 3, dim)
    y = x[:, :4] @ rng.normal(size=4) + rng.normal(size=n)
    assert logme(x, y) == pytest.approx(best_likelihood(x, y), abs=1e-6)


def test_classes_are_averaged():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(50, 6)), rng.integers(0, 3, 50)
    labels[x[:, 0] > 0.5] = 2
    one_hot = np.eye(3)[labels]
    expected = np.mean([best_likelihood(x, one_hot[:, label]) for label in range(3)])
    assert logme(x, one_hot) == pytest.approx(expected, abs=1e-6)


def test_dependent_features_are_no_problem():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 4))
    x = np.hstack([x, x @ rng.normal(size=(4, 3)), np.zeros((50, 2))])
    y = x[:, 0] + 0.3 * rng.normal(size=50)
    assert logme(x, y) == pytest.approx(best_likelihood(x, y), abs=1e-6)


def test_less_noise_is_better_and_noise_alone_is_worst():
    rng = np.random.default_rng(2)
    y = rng.normal(size=200)
    scores = [
        logme(np.column_stack([y + noise * rng.normal(size=200), rng.normal(size=(200, 5))]), y)
        for noise in (0.1, 0.3, 1, 3, 1000)
    ]
    assert scores == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(("n", "dim"), [(60, 5), (25, 70)])
def test_intercept_is_a_direction_less(n, dim):
    """Helmert's matrix has the n - 1 directions that are orthogonal to the constant."""
    rng = np.random.default_rng(n)
    x, y = rng.normal(3, 1, (n, dim)), rng.normal(7, 2, n)
    directions = linalg.helmert(n)
    assert logme(x, y, intercept=True) == pytest.approx(logme(directions @ x, directions @ y), abs=1e-9)


@pytest.mark.parametrize(("n", "dim"), [(300, 1728), (300, 30)])
def test_noise_is_not_better_than_a_constant(n, dim):
    rng = np.random.default_rng(3)
    labels = np.eye(2)[rng.integers(0, 2, n)]
    noise, constant = (logme(x, labels, intercept=True) for x in (rng.normal(size=(n, dim)), np.ones((n, 1))))
    assert abs(noise - constant) < 0.01  # with centring alone 0.036 here, and up to 1.1 with other seeds
