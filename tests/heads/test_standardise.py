"""Tests of `decoder2vec.heads.standardise` against NumPy's decompositions."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.heads.standardise import AFFINE_HEADS, AffineHead


@pytest.fixture
def vectors():
    """Correlated dimensions of very different scale, far from the origin."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12))
    return (mixed * np.logspace(-1, 2, 12) + 5).astype(np.float32)


def assert_close(mapped, expected, tolerance=1e-4):
    assert mapped.shape == expected.shape
    assert np.abs(mapped - expected).max() <= tolerance * np.abs(expected).max()


def test_standardise_gives_mean_zero_and_deviation_one(vectors):
    data = vectors.astype(np.float64)
    mapped = AffineHead.fit("standardise", vectors)(vectors)
    assert mapped.dtype == np.float32
    assert_close(mapped, (data - data.mean(axis=0)) / data.std(axis=0))


def test_standardise_maps_a_constant_dimension_to_zero(vectors):
    vectors[:, 4] = 0.1
    head = AffineHead.fit("standardise", vectors)
    assert (head(vectors)[:, 4] == 0).all()
    new = vectors[:1].copy()
    new[0, 4] = 0.6
    assert head(new)[0, 4] == pytest.approx(0.5)


def test_standardise_applies_the_fit_to_new_vectors(vectors):
    old, new = vectors[:200].astype(np.float64), vectors[200:]
    assert_close(AffineHead.fit("standardise", vectors[:200])(new), (new - old.mean(axis=0)) / old.std(axis=0))


def test_whitened_dimensions_are_uncorrelated(vectors):
    mapped = AffineHead.fit("whiten", vectors)(vectors).astype(np.float64)
    np.testing.assert_allclose(np.cov(mapped, rowvar=False, bias=True), np.eye(12), atol=1e-3)
    np.testing.assert_allclose(mapped.mean(axis=0), 0, atol=1e-3)


def test_whitening_equals_svd_up_to_a_rotation(vectors):
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    mapped = AffineHead.fit("whiten", vectors)(vectors).astype(np.float64)
    assert_close(mapped @ mapped.T, left @ left.T * len(vectors), tolerance=1e-3)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_whitening_of_few_texts_keeps_their_directions(vectors, count):
    head = AffineHead.fit("whiten", vectors[:count])
    assert head.dim == count - 1
    mapped = head(vectors[:count]).astype(np.float64)
    np.testing.assert_allclose(mapped.T @ mapped / count, np.eye(head.dim), atol=1e-3)


def test_whitening_drops_a_constant_dimension(vectors):
    vectors[:, 4] = 0.1
    head = AffineHead.fit("whiten", vectors)
    assert head.dim == 11
    assert np.isfinite(head(vectors)).all()


@pytest.mark.parametrize(("width", "count"), [(12, 1), (100, 1), (149, 1), (250, 2), (320, 3)])
def test_remove_top_projects_out_the_strongest_directions(width, count):
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(400, width)) * np.linspace(1, 9, width) + 2).astype(np.float32)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    head = AffineHead.fit("remove_top", vectors)
    assert head.dim == width
    assert_close(head(vectors), centred - centred @ axes[:count].T @ axes[:count])


def test_rotation_keeps_cosines_and_orders_dimensions_by_weight(vectors):
    mapped = AffineHead.fit("rotate", vectors)(vectors).astype(np.float64)
    assert_close(mapped @ mapped.T, vectors.astype(np.float64) @ vectors.astype(np.float64).T)
    weights = ((mapped / np.linalg.norm(mapped, axis=1, keepdims=True)) ** 2).sum(axis=0)
    assert (np.diff(weights) <= 1e-6).all()


def test_cut_after_rotation_is_the_best_projection(vectors):
    """By Eckart and Young: what is lost are the smallest singular values of the unit vectors."""
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    kept = AffineHead.fit("rotate", unit.astype(np.float32))(unit.astype(np.float32))[:, :5].astype(np.float64)
    expected = np.sqrt((np.linalg.svd(unit, compute_uv=False)[5:] ** 2).sum())
    assert np.sqrt((unit**2).sum() - (kept**2).sum()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", AFFINE_HEADS)
def test_saved_head_gives_identical_vectors(kind, vectors, tmp_path):
    head = AffineHead.fit(kind, vectors)
    head.save(tmp_path / "head.safetensors")
    loaded = AffineHead.load(tmp_path / "head.safetensors", kind)
    np.testing.assert_array_equal(loaded(vectors), head(vectors))
    assert (loaded.kind, loaded.dim, loaded.digest()) == (kind, head.dim, head.digest())


def test_different_heads_have_different_digests(vectors):
    heads = [AffineHead.fit(kind, rows) for kind in AFFINE_HEADS for rows in (vectors, vectors[:299])]
    assert len({head.digest() for head in heads}) == len(heads)
    assert AffineHead.fit("whiten", vectors).digest() == AffineHead.fit("whiten", vectors.copy()).digest()


@pytest.mark.parametrize("kind", AFFINE_HEADS)
@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_texts_are_refused(kind, count, vectors):
    with pytest.raises(InputError, match=f"at least 2 different texts .* not {count}"):
        AffineHead.fit(kind, vectors[:count])


def test_whitening_equal_vectors_is_refused(vectors):
    """That is what `cls` gives with a BOS token: no direction and no dimension would be left."""
    with pytest.raises(InputError):
        AffineHead.fit("whiten", np.repeat(vectors[:1], 5, axis=0))


def test_unknown_head_suggests_the_nearest(vectors):
    with pytest.raises(InputError, match="standardise"):
        AffineHead.fit("standardize", vectors)


def test_input_vectors_are_not_changed(vectors):
    before = vectors.copy()
    for kind in AFFINE_HEADS:
        AffineHead.fit(kind, vectors)(vectors)
    np.testing.assert_array_equal(vectors, before)


def test_dimension_that_varies_only_by_rounding_is_kept():
    vectors = np.random.default_rng(0).normal(size=(50, 3))
    vectors[:, 1] = 0.1
    vectors[::2, 1] = np.nextafter(0.1, 1)
    head = AffineHead.fit("standardise", vectors)
    assert head.map[1] == 1
    np.testing.assert_allclose(head.map[[0, 2]], 1 / vectors[:, [0, 2]].std(axis=0), rtol=1e-6)
