"""Maps between spaces recover what made the second space from the first; neighbours are those of a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group
from sklearn.linear_model import Ridge

from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.maths.space_map import MAPS, Paired, fit_map, kept_neighbours, nearest, neighbour_recall

RNG = np.random.default_rng(0)


def texts_in_two_spaces(change, count=300, dim=16, **similarities):
    old = RNG.standard_normal((count, dim)).astype(np.float32) + 0.5
    new = np.asarray(change(old), np.float32)
    paired = Paired(old, new, **similarities)
    return paired[:200], paired[200:250], paired[250:]


def cosines(a, b):
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("kind", ["procrustes", "affine", "auto"])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_rotation_is_recovered(kind, similarity):
    rotation = ortho_group.rvs(16, random_state=1).astype(np.float32)
    names = {"old_similarity": similarity, "new_similarity": similarity}
    fit, validation, rest = texts_in_two_spaces(lambda old: old @ rotation, **names)
    learned = fit_map(kind, fit, validation)
    assert cosines(learned(rest.old), rest.new) == pytest.approx(1, abs=1e-5)
    if similarity != "cosine":
        assert learned(rest.old) == pytest.approx(rest.new, abs=2e-3)
    assert kept_neighbours(learned, rest).mean() == 1


def test_procrustes_is_that_of_scipy():
    noise = RNG.standard_normal((300, 16)) / 4
    fit, validation, rest = texts_in_two_spaces(
        lambda old: old[:, ::-1] + noise[: len(old)], old_similarity="dot", new_similarity="dot"
    )
    learned = fit_map("procrustes", fit, validation)
    old_mean, new_mean = fit.old.mean(axis=0), fit.new.mean(axis=0)
    rotation, total = orthogonal_procrustes(fit.old - old_mean, fit.new - new_mean)
    scale = total / ((fit.old - old_mean) ** 2).sum()
    assert learned(rest.old) == pytest.approx(scale * (rest.old - old_mean) @ rotation + new_mean, abs=1e-4)


def test_affine_of_full_rank_is_ridge_regression():
    matrix = RNG.standard_normal((16, 12))
    noise = RNG.standard_normal((300, 12))
    fit, validation, rest = texts_in_two_spaces(
        lambda old: old @ matrix + 3 + noise[: len(old)], old_similarity="dot", new_similarity="dot"
    )
    learned = fit_map("affine", fit, validation)
    rank, ridge = (part.split()[1] for part in learned.detail.split(", "))
    mean, deviation = fit.old.mean(axis=0), fit.old.std(axis=0)
    plain = Ridge(alpha=float(ridge) * len(fit)).fit((fit.old - mean) / deviation, fit.new)
    if rank == "12":
        assert learned(rest.old) == pytest.approx(plain.predict((rest.old - mean) / deviation), abs=1e-3)
    assert np.linalg.matrix_rank(learned.weights["matrix"], 1e-4) == int(rank)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("new_dim", [8, 24])
def test_widths_may_differ(kind, new_dim):
    projection = RNG.standard_normal((16, new_dim)).astype(np.float32)
    fit, validation, rest = texts_in_two_spaces(lambda old: old @ projection)
    mapped = fit_map(kind, fit, validation)(rest.old)
    assert mapped.shape == (50, new_dim) and mapped.dtype == np.float32
    assert cosines(mapped, rest.new).mean() > 0.8
    assert np.linalg.norm(mapped, axis=1) == pytest.approx(1, abs=1e-5)


def test_mlp_learns_what_no_affine_map_can():
    matrix = RNG.standard_normal((4, 16))
    fit, validation, rest = texts_in_two_spaces(lambda old: np.abs(old) @ matrix, count=3000, dim=4)
    whole = Paired(np.concatenate([fit.old, rest.old[:2000]]), np.concatenate([fit.new, rest.new[:2000]]))
    held_out = rest[2000:]
    by_kind = {kind: kept_neighbours(fit_map(kind, whole, validation), held_out).mean() for kind in ("affine", "mlp")}
    assert by_kind["mlp"] > by_kind["affine"] + 0.1
    chosen = fit_map("auto", whole, validation)
    assert chosen.kind == "mlp" and kept_neighbours(chosen, held_out).mean() == pytest.approx(by_kind["mlp"])


def test_neighbours_are_those_of_a_plain_loop():
    queries, rows = RNG.standard_normal((7, 5)).astype(np.float32), RNG.standard_normal((30, 5)).astype(np.float32)
    own = np.array([-1, 3, 0, 29, -1, 5, 7])
    for query, found, left_out in zip(queries, nearest(queries, rows, "dot", own), own, strict=True):
        ranked = sorted((row for row in range(30) if row != left_out), key=lambda row: -float(rows[row] @ query))
        assert found.tolist() == ranked[:10]
    assert nearest(queries, rows[:4], "cosine").shape == (7, 4)
    assert neighbour_recall(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [5, 4]])).tolist() == [1, 0.5]


def test_unknown_maps_and_few_texts_are_refused():
    fit, validation, _ = texts_in_two_spaces(lambda old: old)
    with pytest.raises(UnknownNameError, match="Did you mean procrustes"):
        fit_map("procrustus", fit, validation)
    with pytest.raises(InputError, match="too few"):
        fit_map("affine", fit, validation[:5])
