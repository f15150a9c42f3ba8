"""Every measure of geometry against a direct implementation of its definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.maths.geometry import alignment, anisotropy, cka_matrix, effective_rank, linear_cka, uniformity

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6)) + 0.5
Y = np.tanh(X @ RNG.standard_normal((6, 9)))


def unit(vector):
    return vector / np.linalg.norm(vector)


def squared_distances(rows):
    return [((unit(a) - unit(b)) ** 2).sum() for a, b in itertools.combinations(rows, 2)]


def test_anisotropy_is_the_mean_cosine_of_all_pairs():
    cosines = [unit(a) @ unit(b) for a, b in itertools.combinations(X, 2)]
    assert anisotropy(X) == pytest.approx(np.mean(cosines), rel=1e-12)
    assert anisotropy(np.ones((5, 3))) == pytest.approx(1)
    assert anisotropy(np.array([[1.0, 0.0], [-2.0, 0.0]])) == pytest.approx(-1)


def test_cosine_with_a_zero_vector_is_zero():
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    assert anisotropy(rows) == pytest.approx(1 / 3)


def test_uniformity_equals_a_loop_over_pairs():
    assert uniformity(X) == pytest.approx(math.log(np.mean(np.exp(-2 * np.array(squared_distances(X))))), rel=1e-9)


def test_uniformity_in_chunks_equals_pairwise_distances():
    from scipy.spatial.distance import pdist

    rows = RNG.standard_normal((1300, 4))  # more than two chunks
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert uniformity(rows) == pytest.approx(np.log(np.exp(-2 * pdist(rows) ** 2).mean()), rel=1e-9)


def test_alignment_equals_a_loop_over_pairs():
    shifted = X + 0.1 * RNG.standard_normal(X.shape)
    expected = np.mean([((unit(a) - unit(b)) ** 2).sum() for a, b in zip(X, shifted, strict=True)])
    assert alignment(X, shifted) == pytest.approx(expected, rel=1e-12)
    assert alignment(X, 3 * X) == pytest.approx(0, abs=1e-30)
    with pytest.raises(InputError, match="pairs"):
        alignment(X, X[:3])


def effective_rank_by_svd(rows):
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    shares = [value / values.sum() for value in values if value > 1e-9]
    return math.exp(-sum(share * math.log(share) for share in shares))


@pytest.mark.parametrize("rows", [X, X.T, Y, 1e20 * X, X[:3]], ids=["tall", "wide", "nonlinear", "huge", "three"])
def test_effective_rank_is_the_entropy_of_the_singular_values(rows):
    assert effective_rank(rows) == pytest.approx(effective_rank_by_svd(rows), rel=1e-6)


def test_effective_rank_counts_equally_strong_directions():
    rows = np.concatenate([np.eye(7), -np.eye(7)])
    assert effective_rank(rows) == pytest.approx(7)
    assert effective_rank(np.outer(np.arange(9.0), np.ones(4))) == pytest.approx(1)


def test_effective_rank_ignores_rounding_errors():
    """Of 300 singular values two are real; the other 298 are as small as rounding errors."""
    rows = RNG.standard_normal((400, 2)) @ RNG.standard_normal((2, 300))
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:2]
    shares = values / values.sum()
    assert effective_rank(rows) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-9)


def textbook_cka(x, y):
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with the centring matrix written out."""
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n

    def hsic(k, m):
        return np.trace(k @ centre @ m @ centre) / (n - 1) ** 2

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def test_cka_equals_the_textbook_formula():
    assert linear_cka(X, Y) == pytest.approx(textbook_cka(X, Y), rel=1e-9)
    x, y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    from_features = np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert linear_cka(X, Y) == pytest.approx(from_features, rel=1e-9)


def test_cka_ignores_rotation_scale_and_offset_only():
    rotation = np.linalg.qr(RNG.standard_normal((6, 6)))[0]
    assert linear_cka(X, 1e5 * X @ rotation + 7) == pytest.approx(1)
    assert linear_cka(Y, X @ rotation - 3) == pytest.approx(linear_cka(Y, X), rel=1e-9)
    assert linear_cka(X, X * [100, 1, 1, 1, 1, 1]) < 0.9


def test_cka_matrix_in_chunks_equals_single_pairs():
    layers = [RNG.standard_normal((700, dim)) + RNG.standard_normal((700, 1)) for dim in (3, 5, 8)]
    matrix = cka_matrix(layers)
    for i, j in itertools.product(range(3), repeat=2):
        x, y = (layers[n] - layers[n].mean(axis=0) for n in (i, j))
        expected = np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
        assert matrix[i, j] == pytest.approx(expected, rel=1e-9)


def test_undefined_measures_are_nan():
    equal = np.full((5, 3), 0.1)
    assert math.isnan(effective_rank(equal))
    assert math.isnan(linear_cka(equal, X[:5]))
    assert math.isnan(anisotropy(X[:1])) and math.isnan(uniformity(X[:1])) and math.isnan(alignment(X[:0], X[:0]))
    with pytest.raises(InputError, match="same texts"):
        linear_cka(X, Y[:7])
