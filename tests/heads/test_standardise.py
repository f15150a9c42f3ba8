"""Heads against numpy's own decompositions."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.heads.standardise import AFFINE_HEADS, AffineHead


@pytest.fixture
def vectors():
    """Correlated dimensions of very different size, far from the origin."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12))
    return (mixed * np.logspace(-1, 2, 12) + 5).astype(np.float32)


def same(found, expected, tolerance=1e-4):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_standardise_gives_every_dimension_mean_zero_and_deviation_one(vectors):
    data = vectors.astype(np.float64)
    found = AffineHead.fit("standardise", vectors)(vectors)
    assert found.dtype == np.float32
    same(found, (data - data.mean(axis=0)) / data.std(axis=0))


def test_standardise_leaves_a_constant_dimension_at_zero(vectors):
    vectors[:, 4] = 0.1
    head = AffineHead.fit("standardise", vectors)
    assert (head(vectors)[:, 4] == 0).all()
    new = vectors[:1].copy()
    new[0, 4] = 0.6
    assert head(new)[0, 4] == pytest.approx(0.5)


def test_standardise_uses_what_it_was_fitted_on_for_new_vectors(vectors):
    old, new = vectors[:200].astype(np.float64), vectors[200:]
    same(AffineHead.fit("standardise", vectors[:200])(new), (new - old.mean(axis=0)) / old.std(axis=0))


def test_whitened_dimensions_are_uncorrelated_with_unit_variance(vectors):
    found = AffineHead.fit("whiten", vectors)(vectors).astype(np.float64)
    np.testing.assert_allclose(np.cov(found, rowvar=False, bias=True), np.eye(12), atol=1e-3)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-3)


def test_whitening_equals_numpys_svd_up_to_a_rotation(vectors):
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    found = AffineHead.fit("whiten", vectors)(vectors).astype(np.float64)
    same(found @ found.T, left @ left.T * len(vectors), tolerance=1e-3)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_whitening_fewer_texts_than_dimensions_keeps_the_directions_there_are(vectors, count):
    head = AffineHead.fit("whiten", vectors[:count])
    assert head.dim == count - 1
    found = head(vectors[:count]).astype(np.float64)
    np.testing.assert_allclose(found.T @ found / count, np.eye(head.dim), atol=1e-3)


def test_whitening_drops_a_constant_dimension(vectors):
    vectors[:, 4] = 0.1
    head = AffineHead.fit("whiten", vectors)
    assert head.dim == 11
    assert np.isfinite(head(vectors)).all()


@pytest.mark.parametrize(("width", "count"), [(12, 1), (100, 1), (149, 1), (250, 2), (320, 3)])
def test_remove_top_projects_the_strongest_directions_out(width, count):
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(400, width)) * np.linspace(1, 9, width) + 2).astype(np.float32)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    head = AffineHead.fit("remove_top", vectors)
    assert head.dim == width
    same(head(vectors), centred - centred @ axes[:count].T @ axes[:count])


@pytest.mark.parametrize("kind", ["standardise", "whiten", "remove_top"])
def test_a_saved_head_gives_identical_vectors(kind, vectors, tmp_path):
    head = AffineHead.fit(kind, vectors)
    head.save(tmp_path / "head.safetensors")
    again = AffineHead.load(tmp_path / "head.safetensors", kind)
    np.testing.assert_array_equal(again(vectors), head(vectors))
    assert (again.kind, again.dim, again.digest()) == (kind, head.dim, head.digest())


def test_the_digest_tells_heads_apart(vectors):
    heads = [AffineHead.fit(kind, part) for kind in AFFINE_HEADS for part in (vectors, vectors[:299])]
    assert len({head.digest() for head in heads}) == len(heads)
    assert AffineHead.fit("whiten", vectors).digest() == AffineHead.fit("whiten", vectors.copy()).digest()


@pytest.mark.parametrize("kind", AFFINE_HEADS)
@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_texts_are_refused(kind, count, vectors):
    with pytest.raises(InputError, match=f"at least 2 different texts .* not {count}"):
        AffineHead.fit(kind, vectors[:count])


def test_whitening_vectors_that_are_all_the_same_is_refused(vectors):
    """Which is what `cls` gives behind a BOS token: no direction is left, and no dimension."""
    with pytest.raises(InputError):
        AffineHead.fit("whiten", np.repeat(vectors[:1], 5, axis=0))


def test_an_unknown_head_suggests_the_nearest(vectors):
    with pytest.raises(InputError, match="standardise"):
        AffineHead.fit("standardize", vectors)


def test_the_vectors_given_are_not_changed(vectors):
    before = vectors.copy()
    for kind in AFFINE_HEADS:
        AffineHead.fit(kind, vectors)(vectors)
    np.testing.assert_array_equal(vectors, before)


def test_a_dimension_that_varies_by_rounding_alone_is_not_blown_up():
    vectors = np.random.default_rng(0).normal(size=(50, 3))
    vectors[:, 1] = 0.1
    vectors[::2, 1] = np.nextafter(0.1, 1)
    head = AffineHead.fit("standardise", vectors)
    assert head.map[1] == 1
    np.testing.assert_allclose(head.map[[0, 2]], 1 / vectors[:, [0, 2]].std(axis=0), rtol=1e-6)
