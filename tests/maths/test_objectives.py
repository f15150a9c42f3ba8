"""Objectives against sentence-transformers, values and gradients, and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    AnglELoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import (
    PAIR_LOSSES,
    angle_pair_loss,
    cosent_pair_loss,
    cosine_mse_pair_loss,
    info_nce,
    matryoshka_loss,
)

THEIR_PAIRS = {"cosent": CoSENTLoss, "angle": AnglELoss, "cosine_mse": CosineSimilarityLoss}
BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


def vectors(*shape, seed=0):
    """Vectors of many lengths."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=shape) * rng.uniform(0.1, 9, size=(*shape[:-1], 1))).float()


def batch(n, m, dim=6):
    """Anchors, positives and, unless m is None, negatives."""
    roles = [vectors(n, dim, seed=1), vectors(n, dim, seed=2)]
    return roles if m is None else [*roles, vectors(n, m, dim, seed=3)]


def pairs(n, dim):
    """Both sides, and scores with ties."""
    scores = torch.from_numpy(np.random.default_rng(4).integers(0, 6, n) / 5).float()
    return vectors(n, dim, seed=5), vectors(n, dim, seed=6), scores


def with_gradients(loss_of, roles):
    """The loss and what each role gets of it."""
    roles = [role.clone().requires_grad_() for role in roles]
    loss = loss_of(*roles)
    return [loss.detach(), *torch.autograd.grad(loss, roles, materialize_grads=True)]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def columns(anchors, positives, negatives=None):
    """Roles as sentence-transformers wants them: one [n, dim] tensor for each column."""
    return [anchors, positives, *(() if negatives is None else negatives.unbind(1))]


def theirs(loss, labels=None):
    return lambda *roles: loss.compute_loss_from_embeddings(columns(*roles), labels)


def cosine_by_hand(a, b):
    return (a @ b) / math.sqrt((a @ a) * (b @ b))


def one_way(seekers, candidates, temperature, skip):
    """The mean over seekers i of -log(share of candidate i), without the candidates j for which skip(i, j)."""
    total = 0.0
    for i, seeker in enumerate(seekers):
        terms = {
            j: math.exp(cosine_by_hand(seeker, other) / temperature)
            for j, other in enumerate(candidates)
            if i == j or not skip(i, j)
        }
        total -= math.log(terms[i] / sum(terms.values()))
    return total / len(seekers)


def info_nce_by_hand(roles, temperature=0.05, symmetric=False, masked=None):
    anchors, positives, *negatives = (role.double().numpy() for role in roles)
    candidates = list(positives)
    for column in range(negatives[0].shape[1] if negatives else 0):
        candidates += [of_anchor[column] for of_anchor in negatives[0]]
    forth = one_way(anchors, candidates, temperature, lambda i, j: masked is not None and masked[i, j])
    if not symmetric:
        return forth
    back = one_way(positives, anchors, temperature, lambda i, j: masked is not None and masked[j, i])
    return (forth + back) / 2


# --- InfoNCE ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("m", [None, 0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_info_nce_equals_sentence_transformers(n, m, temperature):
    loss = MultipleNegativesRankingLoss(model=None, scale=1 / temperature)
    found = with_gradients(lambda *roles: info_nce(*roles, temperature=temperature), batch(n, m))
    assert_same(found, with_gradients(theirs(loss), batch(n, m)))


@pytest.mark.parametrize("m", [None, 0, 1, 3])
@pytest.mark.parametrize("n", [1, 9])
def test_symmetric_info_nce_equals_sentence_transformers(n, m):
    found = with_gradients(lambda *roles: info_nce(*roles, symmetric=True), batch(n, m))
    for loss in (MultipleNegativesRankingLoss(None, **BOTH_WAYS), MultipleNegativesSymmetricRankingLoss(None)):
        assert_same(found, with_gradients(theirs(loss), batch(n, m)))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("m", [None, 0, 1, 3])
def test_info_nce_equals_a_loop(m, with_mask, symmetric):
    roles = batch(7, m)
    some = np.random.default_rng(7).random((7, 7 * (1 + (m or 0)))) < 0.4
    masked = torch.from_numpy(some) if with_mask else None
    found = info_nce(*roles, temperature=0.1, symmetric=symmetric, masked=masked)
    expected = info_nce_by_hand(roles, 0.1, symmetric, some if with_mask else None)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_a_missing_negative_that_is_masked_for_all_might_as_well_not_be_there():
    anchors, positives, negatives = batch(5, 2)
    masked = torch.zeros(5, 15, dtype=torch.bool)
    masked[:, 10:] = True
    found = with_gradients(lambda *roles: info_nce(*roles, masked=masked), [anchors, positives, negatives])
    loss, to_anchors, to_positives, to_first = with_gradients(info_nce, [anchors, positives, negatives[:, :1]])
    nothing = torch.zeros_like(to_first)
    assert_same(found, [loss, to_anchors, to_positives, torch.cat([to_first, nothing], dim=1)])


@pytest.mark.parametrize("symmetric", [False, True])
def test_with_everything_masked_each_positive_is_found(symmetric):
    masked = torch.ones(4, 16, dtype=torch.bool)
    found = with_gradients(lambda *roles: info_nce(*roles, symmetric=symmetric, masked=masked), batch(4, 3))
    assert all((part == 0).all() for part in found)


def test_the_same_text_twice_costs_a_coin_toss_unless_it_is_masked():
    twice = vectors(1, 6).repeat(2, 1)
    assert info_nce(twice, twice).item() == pytest.approx(math.log(2))
    assert info_nce(twice, twice, masked=torch.ones(2, 2, dtype=torch.bool)).item() == 0


# --- scored pairs -----------------------------------------------------------------------------------------------------


def test_names_lead_to_objectives():
    assert list(PAIR_LOSSES.items()) == [
        ("cosent", cosent_pair_loss),
        ("angle", angle_pair_loss),
        ("cosine_mse", cosine_mse_pair_loss),
    ]


@pytest.mark.parametrize("dim", [1, 6, 7])
@pytest.mark.parametrize("n", [1, 2, 25])
@pytest.mark.parametrize("name", THEIR_PAIRS)
def test_pair_objectives_equal_sentence_transformers(name, n, dim):
    *sides, scores = pairs(n, dim)
    found = with_gradients(lambda *both: PAIR_LOSSES[name](*both, scores), sides)
    assert_same(found, with_gradients(theirs(THEIR_PAIRS[name](model=None), scores), sides))


def test_angle_equals_complex_numbers():
    """|cosine + sine| of unit vectors a, b is |Re z - Im z| with z the sum of conj(a) b over complex halves."""
    left, right, scores = (part.double().numpy() for part in pairs(8, 6))
    found = []
    for a, b in zip(left, right, strict=True):
        z = np.vdot(a[:3] + 1j * a[3:], b[:3] + 1j * b[3:]) / math.sqrt((a @ a) * (b @ b))
        found.append(abs(z.real - z.imag))
    expected = 1.0
    for p, t in zip(found, scores, strict=True):
        expected += sum(math.exp(20 * (q - p)) for q, u in zip(found, scores, strict=True) if t > u)
    assert angle_pair_loss(*pairs(8, 6)).item() == pytest.approx(math.log(expected), rel=1e-5)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_pairs_of_identical_texts_all_score_the_same(name):
    left, _, scores = pairs(12, 6)
    loss, *gradients = with_gradients(lambda a, b: PAIR_LOSSES[name](a, b, scores), [left, left])
    ordered = sum(float(t > u) for t in scores for u in scores)
    expected = ((1 - scores) ** 2).mean().item() if name == "cosine_mse" else math.log(1 + ordered)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


# --- all of them ------------------------------------------------------------------------------------------------------

OBJECTIVES = {
    "info_nce": (info_nce, batch(6, 2)),
    "symmetric": (lambda *roles: info_nce(*roles, symmetric=True), batch(6, 2)),
    **{name: (objective, pairs(6, 6)) for name, objective in PAIR_LOSSES.items()},
}


@pytest.fixture(params=OBJECTIVES)
def case(request):
    return OBJECTIVES[request.param]


def test_the_length_of_vectors_does_not_matter(case):
    objective, (left, right, third) = case
    assert_same(objective(left * 100, right / 100, third), objective(left, right, third))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_any_precision_are_computed_in_float32(case, dtype):
    objective, roles = case
    rounded = [role.to(dtype) for role in roles]
    found = with_gradients(objective, rounded)
    assert found[0].dtype == torch.float32
    assert found[1].dtype == dtype
    torch.testing.assert_close(found[0], objective(*(role.float() for role in rounded)), rtol=0, atol=0)


def test_autocast_does_not_make_an_objective_coarser(case):
    objective, roles = case
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (roles[0] @ roles[1].T).dtype == torch.bfloat16, "what a plain product would be"
        found = objective(*roles)
    torch.testing.assert_close(found, objective(*roles), rtol=0, atol=0)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("rows", [slice(1), slice(None)])
def test_zero_vectors_cost_something_finite_and_get_no_gradient(case, zero, rows):
    objective, roles = case
    roles = [role.clone() for role in roles]
    roles[zero][rows] = 0
    found = with_gradients(objective, roles)
    assert all(torch.isfinite(part).all() for part in found)
    assert (found[1 + zero][rows] == 0).all()


# --- Matryoshka -------------------------------------------------------------------------------------------------------


class Handed(torch.nn.Module):
    """A model of sentence-transformers that hands on the vectors it is given."""

    def forward(self, features):
        return dict(features)

    def get_embedding_dimension(self):
        return None


def their_matryoshka(loss_class, dims, labels=None):
    model = Handed()
    loss = MatryoshkaLoss(model, loss_class(model), dims)
    return lambda *roles: loss([{"sentence_embedding": column} for column in columns(*roles)], labels)


@pytest.mark.parametrize("dims", [(8,), (8, 4, 2), (3, 7)])
@pytest.mark.parametrize("m", [None, 2])
def test_matryoshka_info_nce_equals_sentence_transformers(m, dims):
    found = with_gradients(matryoshka_loss(info_nce, dims), batch(5, m, dim=8))
    assert_same(found, with_gradients(their_matryoshka(MultipleNegativesRankingLoss, dims), batch(5, m, dim=8)))


@pytest.mark.parametrize("dims", [(8,), (8, 4, 2), (3, 7)])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_matryoshka_pair_objectives_equal_sentence_transformers(name, dims):
    *sides, scores = pairs(9, 8)
    found = with_gradients(lambda *both: matryoshka_loss(PAIR_LOSSES[name], dims)(*both, scores), sides)
    assert_same(found, with_gradients(their_matryoshka(THEIR_PAIRS[name], dims, scores), sides))


def test_matryoshka_cuts_vectors_given_by_name_and_leaves_options_alone():
    anchors, positives, negatives = batch(4, 2, dim=8)
    options = {"temperature": 0.2, "symmetric": True, "masked": vectors(4, 12) > 1}
    found = matryoshka_loss(info_nce, (8, 2))(anchors, positives=positives, negatives=negatives, **options)
    expected = sum(
        info_nce(anchors[:, :dim], positives[:, :dim], negatives[..., :dim], **options).item() for dim in (8, 2)
    )
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_matryoshka_dimensions_that_the_vectors_do_not_have_are_refused():
    with pytest.raises(InputError, match="have 6 dimensions; lower the Matryoshka dimension 16"):
        matryoshka_loss(info_nce, (4, 16))(*batch(3, None))


@pytest.mark.parametrize("dims", [(), (4, 0), (-1,)])
def test_matryoshka_needs_dimensions_above_0(dims):
    with pytest.raises(InputError, match="above 0"):
        matryoshka_loss(info_nce, dims)
