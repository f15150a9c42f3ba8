"""Losses against numpy, plain loops and sentence-transformers: values and gradients."""

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
    SCORE_LOSSES,
    angle_pair_loss,
    cosent_loss,
    cosent_pair_loss,
    cosine_mse_pair_loss,
    info_nce,
    log_variance_loss,
    margin_kl,
    matryoshka_loss,
    mse_loss,
    pearson_loss,
)

SENTENCE_TRANSFORMERS = {"cosent": CoSENTLoss, "angle": AnglELoss, "cosine_mse": CosineSimilarityLoss}
BOTH_DIRECTIONS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


# --- predicted scores ------------------------------------------------------------------------------------------------


def cosent_by_hand(predicted, target):
    """log(1 + sum of exp(20 * (lower - higher))) over every two pairs with different targets."""
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
    """Predictions and targets that float16 and bfloat16 represent exactly; targets have ties."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 129, 40) / 128, rng.integers(0, 9, 40) / 8


def test_every_score_loss_has_a_reference_here():
    assert set(SCORE_LOSSES) == set(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_score_losses_equal_numpy(name, pairs):
    predicted, target = map(torch.from_numpy, pairs)
    assert SCORE_LOSSES[name](predicted, target).item() == pytest.approx(BY_HAND[name](*pairs), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BY_HAND)
def test_16_bit_predictions_are_computed_in_float32(name, dtype, pairs):
    predicted, target = (torch.from_numpy(values).to(dtype) for values in pairs)
    loss = SCORE_LOSSES[name](predicted, target)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(BY_HAND[name](*pairs), rel=1e-5)


@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_equal_finite_differences(name, pairs):
    predicted = torch.from_numpy(pairs[0][:6]).float().requires_grad_()
    SCORE_LOSSES[name](predicted, torch.from_numpy(pairs[1][:6])).backward()
    for index in range(6):
        step = np.eye(6)[index] * 1e-5
        up, down = (BY_HAND[name](pairs[0][:6] + sign * step, pairs[1][:6]) for sign in (1, -1))
        assert predicted.grad[index].item() == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("case", ["perfect", "constant predictions", "constant targets", "both constant"])
def test_degenerate_inputs_have_finite_loss_and_gradients(name, case):
    rising, flat = torch.linspace(0, 1, 8), torch.full((8,), 0.5)
    predicted = (rising if case in ("perfect", "constant targets") else flat).clone().requires_grad_()
    target = rising if case in ("perfect", "constant predictions") else flat
    loss = SCORE_LOSSES[name](predicted, target)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(predicted.grad).all()


def test_perfect_predictions_have_the_lowest_loss():
    target = torch.linspace(0, 1, 8)
    assert mse_loss(target, target).item() == 0
    assert pearson_loss(target, target).item() == pytest.approx(0, abs=1e-6)
    assert log_variance_loss(target, target).item() == pytest.approx(math.log(1e-6))
    assert cosent_loss(target * 10, target).item() == pytest.approx(0, abs=1e-6)


def test_log_variance_ignores_a_constant_error_but_mse_does_not(pairs):
    predicted, target = map(torch.from_numpy, pairs)
    torch.testing.assert_close(log_variance_loss(predicted + 0.25, target), log_variance_loss(predicted, target))
    assert mse_loss(target + 0.25, target).item() == pytest.approx(0.0625)


def test_pearson_loss_ignores_offset_and_scale(pairs):
    predicted, target = map(torch.from_numpy, pairs)
    torch.testing.assert_close(pearson_loss(3 * predicted - 7, target), pearson_loss(predicted, target))
    assert pearson_loss(-target, target).item() == pytest.approx(2)


@pytest.mark.parametrize("name", ["log_variance", "pearson"])
@pytest.mark.parametrize("count", [0, 1])
def test_batch_too_small_for_a_variance_is_refused(name, count):
    with pytest.raises(InputError, match="2 pairs or more"):
        SCORE_LOSSES[name](torch.zeros(count), torch.ones(count))


@pytest.mark.parametrize("name", ["mse", "cosent"])
def test_mse_and_cosent_accept_a_single_pair(name):
    assert torch.isfinite(SCORE_LOSSES[name](torch.tensor([0.3]), torch.tensor([0.8])))


def test_cosent_equals_sentence_transformers():
    rng = np.random.default_rng(1)
    left, right = (torch.from_numpy(rng.normal(size=(25, 6))).float() for _ in range(2))
    target = torch.from_numpy(rng.integers(0, 6, 25) / 5).float()
    expected = CoSENTLoss(model=None).compute_loss_from_embeddings([left, right], target)
    torch.testing.assert_close(cosent_loss(torch.cosine_similarity(left, right), target), expected)


def test_cosent_of_very_wrong_predictions_does_not_overflow():
    loss = cosent_loss(torch.tensor([100.0, -100.0], dtype=torch.float16), torch.tensor([0.0, 1.0]))
    assert loss.item() == pytest.approx(4000)


# --- helpers for losses on vectors -----------------------------------------------------------------------------------


def vectors(*shape, seed=0):
    """Random vectors of different norms."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=shape) * rng.uniform(0.1, 9, size=(*shape[:-1], 1))).float()


def batch(n, m, dim=6):
    """Anchors, positives and, unless m is None, negatives."""
    anchors_positives = [vectors(n, dim, seed=1), vectors(n, dim, seed=2)]
    return anchors_positives if m is None else [*anchors_positives, vectors(n, m, dim, seed=3)]


def scored_pairs(n, dim):
    """Both sides, and scores with ties."""
    scores = torch.from_numpy(np.random.default_rng(4).integers(0, 6, n) / 5).float()
    return vectors(n, dim, seed=5), vectors(n, dim, seed=6), scores


def with_gradients(loss_function, inputs):
    """The loss and its gradient for each input."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    loss = loss_function(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, inputs, materialize_grads=True)]


def assert_close(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def columns(anchors, positives, negatives=None):
    """The inputs as sentence-transformers takes them: one [n, dim] tensor for each column."""
    return [anchors, positives, *(() if negatives is None else negatives.unbind(1))]


def sentence_transformers_loss(loss, labels=None):
    return lambda *inputs: loss.compute_loss_from_embeddings(columns(*inputs), labels)


def cosine_by_hand(a, b):
    return (a @ b) / math.sqrt((a @ a) * (b @ b))


def info_nce_one_direction(queries, candidates, temperature, skip):
    """Mean over queries i of -log softmax(candidate i), without the candidates j for which skip(i, j)."""
    total = 0.0
    for i, query in enumerate(queries):
        terms = {
            j: math.exp(cosine_by_hand(query, candidate) / temperature)
            for j, candidate in enumerate(candidates)
            if i == j or not skip(i, j)
        }
        total -= math.log(terms[i] / sum(terms.values()))
    return total / len(queries)


def info_nce_by_hand(inputs, temperature=0.05, symmetric=False, masked=None):
    anchors, positives, *negatives = (tensor.double().numpy() for tensor in inputs)
    candidates = list(positives)
    for column in range(negatives[0].shape[1] if negatives else 0):
        candidates += [anchor_negatives[column] for anchor_negatives in negatives[0]]
    forward = info_nce_one_direction(anchors, candidates, temperature, lambda i, j: masked is not None and masked[i, j])
    if not symmetric:
        return forward
    backward = info_nce_one_direction(positives, anchors, temperature, lambda i, j: masked is not None and masked[j, i])
    return (forward + backward) / 2


# --- InfoNCE ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("m", [None, 0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_info_nce_equals_sentence_transformers(n, m, temperature):
    loss = MultipleNegativesRankingLoss(model=None, scale=1 / temperature)
    result = with_gradients(lambda *inputs: info_nce(*inputs, temperature=temperature), batch(n, m))
    assert_close(result, with_gradients(sentence_transformers_loss(loss), batch(n, m)))


@pytest.mark.parametrize("m", [None, 0, 1, 3])
@pytest.mark.parametrize("n", [1, 9])
def test_symmetric_info_nce_equals_sentence_transformers(n, m):
    result = with_gradients(lambda *inputs: info_nce(*inputs, symmetric=True), batch(n, m))
    for loss in (MultipleNegativesRankingLoss(None, **BOTH_DIRECTIONS), MultipleNegativesSymmetricRankingLoss(None)):
        assert_close(result, with_gradients(sentence_transformers_loss(loss), batch(n, m)))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("m", [None, 0, 1, 3])
def test_info_nce_equals_a_loop(m, with_mask, symmetric):
    inputs = batch(7, m)
    mask = np.random.default_rng(7).random((7, 7 * (1 + (m or 0)))) < 0.4
    masked = torch.from_numpy(mask) if with_mask else None
    result = info_nce(*inputs, temperature=0.1, symmetric=symmetric, masked=masked)
    expected = info_nce_by_hand(inputs, 0.1, symmetric, mask if with_mask else None)
    assert result.item() == pytest.approx(expected, rel=1e-5)


def test_negative_masked_for_all_anchors_has_no_effect():
    anchors, positives, negatives = batch(5, 2)
    masked = torch.zeros(5, 15, dtype=torch.bool)
    masked[:, 10:] = True
    result = with_gradients(lambda *inputs: info_nce(*inputs, masked=masked), [anchors, positives, negatives])
    loss, *gradients, first_gradient = with_gradients(info_nce, [anchors, positives, negatives[:, :1]])
    no_gradient = torch.zeros_like(first_gradient)
    assert_close(result, [loss, *gradients, torch.cat([first_gradient, no_gradient], dim=1)])


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_is_zero_if_everything_is_masked(symmetric):
    masked = torch.ones(4, 16, dtype=torch.bool)
    result = with_gradients(lambda *inputs: info_nce(*inputs, symmetric=symmetric, masked=masked), batch(4, 3))
    assert all((tensor == 0).all() for tensor in result)


def test_duplicate_texts_cost_log_2_unless_masked():
    duplicates = vectors(1, 6).repeat(2, 1)
    assert info_nce(duplicates, duplicates).item() == pytest.approx(math.log(2))
    assert info_nce(duplicates, duplicates, masked=torch.ones(2, 2, dtype=torch.bool)).item() == 0


# --- scored pairs ----------------------------------------------------------------------------------------------------


def test_pair_losses_have_their_names():
    assert list(PAIR_LOSSES.items()) == [
        ("cosent", cosent_pair_loss),
        ("angle", angle_pair_loss),
        ("cosine_mse", cosine_mse_pair_loss),
    ]


@pytest.mark.parametrize("dim", [1, 6, 7])
@pytest.mark.parametrize("n", [1, 2, 25])
@pytest.mark.parametrize("name", SENTENCE_TRANSFORMERS)
def test_pair_losses_equal_sentence_transformers(name, n, dim):
    *vector_pair, scores = scored_pairs(n, dim)
    result = with_gradients(lambda *vectors: PAIR_LOSSES[name](*vectors, scores), vector_pair)
    assert_close(
        result, with_gradients(sentence_transformers_loss(SENTENCE_TRANSFORMERS[name](model=None), scores), vector_pair)
    )


def test_angle_equals_complex_numbers():
    """|cosine + sine| of unit vectors a, b is |Re z - Im z| with z the sum of conj(a) b over complex halves."""
    left, right, scores = (tensor.double().numpy() for tensor in scored_pairs(8, 6))
    result = []
    for a, b in zip(left, right, strict=True):
        z = np.vdot(a[:3] + 1j * a[3:], b[:3] + 1j * b[3:]) / math.sqrt((a @ a) * (b @ b))
        result.append(abs(z.real - z.imag))
    expected = 1.0
    for p, t in zip(result, scores, strict=True):
        expected += sum(math.exp(20 * (q - p)) for q, u in zip(result, scores, strict=True) if t > u)
    assert angle_pair_loss(*scored_pairs(8, 6)).item() == pytest.approx(math.log(expected), rel=1e-5)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_identical_texts_have_equal_cosines(name):
    left, _, scores = scored_pairs(12, 6)
    loss, *gradients = with_gradients(lambda a, b: PAIR_LOSSES[name](a, b, scores), [left, left])
    ordered = sum(float(t > u) for t in scores for u in scores)
    expected = ((1 - scores) ** 2).mean().item() if name == "cosine_mse" else math.log(1 + ordered)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


# --- every loss on vectors -------------------------------------------------------------------------------------------

VECTOR_LOSSES = {
    "info_nce": (info_nce, batch(6, 2)),
    "symmetric": (lambda *inputs: info_nce(*inputs, symmetric=True), batch(6, 2)),
    **{name: (loss, scored_pairs(6, 6)) for name, loss in PAIR_LOSSES.items()},
}


@pytest.fixture(params=VECTOR_LOSSES)
def case(request):
    return VECTOR_LOSSES[request.param]


def test_loss_ignores_the_norm_of_vectors(case):
    loss_function, (left, right, third) = case
    assert_close(loss_function(left * 100, right / 100, third), loss_function(left, right, third))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_loss_is_computed_in_float32_for_any_dtype(case, dtype):
    loss_function, inputs = case
    rounded = [tensor.to(dtype) for tensor in inputs]
    result = with_gradients(loss_function, rounded)
    assert result[0].dtype == torch.float32
    assert result[1].dtype == dtype
    torch.testing.assert_close(result[0], loss_function(*(tensor.float() for tensor in rounded)), rtol=0, atol=0)


def test_autocast_does_not_lower_the_precision(case):
    loss_function, inputs = case
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (inputs[0] @ inputs[1].T).dtype == torch.bfloat16, "a plain product would be computed in 16 bits"
        result = loss_function(*inputs)
    torch.testing.assert_close(result, loss_function(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("rows", [slice(1), slice(None)])
def test_zero_vectors_have_finite_loss_and_no_gradient(case, zero, rows):
    loss_function, inputs = case
    inputs = [tensor.clone() for tensor in inputs]
    inputs[zero][rows] = 0
    result = with_gradients(loss_function, inputs)
    assert all(torch.isfinite(tensor).all() for tensor in result)
    assert (result[1 + zero][rows] == 0).all()


# --- Matryoshka ------------------------------------------------------------------------------------------------------


class IdentityModel(torch.nn.Module):
    """A model of sentence-transformers that returns its inputs."""

    def forward(self, features):
        return dict(features)

    def get_embedding_dimension(self):
        return None


def sentence_transformers_matryoshka(loss_class, dims, labels=None):
    model = IdentityModel()
    loss = MatryoshkaLoss(model, loss_class(model), dims)
    return lambda *inputs: loss([{"sentence_embedding": column} for column in columns(*inputs)], labels)


@pytest.mark.parametrize("dims", [(8,), (8, 4, 2), (3, 7)])
@pytest.mark.parametrize("m", [None, 2])
def test_matryoshka_info_nce_equals_sentence_transformers(m, dims):
    result = with_gradients(matryoshka_loss(info_nce, dims), batch(5, m, dim=8))
    assert_close(
        result, with_gradients(sentence_transformers_matryoshka(MultipleNegativesRankingLoss, dims), batch(5, m, dim=8))
    )


@pytest.mark.parametrize("dims", [(8,), (8, 4, 2), (3, 7)])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_matryoshka_pair_losses_equal_sentence_transformers(name, dims):
    *vector_pair, scores = scored_pairs(9, 8)
    result = with_gradients(lambda *vectors: matryoshka_loss(PAIR_LOSSES[name], dims)(*vectors, scores), vector_pair)
    assert_close(
        result, with_gradients(sentence_transformers_matryoshka(SENTENCE_TRANSFORMERS[name], dims, scores), vector_pair)
    )


def test_matryoshka_truncates_keyword_vectors_not_options():
    anchors, positives, negatives = batch(4, 2, dim=8)
    options = {"temperature": 0.2, "symmetric": True, "masked": vectors(4, 12) > 1}
    result = matryoshka_loss(info_nce, (8, 2))(anchors, positives=positives, negatives=negatives, **options)
    expected = sum(
        info_nce(anchors[:, :dim], positives[:, :dim], negatives[..., :dim], **options).item() for dim in (8, 2)
    )
    assert result.item() == pytest.approx(expected, rel=1e-5)


def test_matryoshka_dims_above_the_width_are_refused():
    with pytest.raises(InputError, match="have 6 dimensions; lower the Matryoshka dimension 16"):
        matryoshka_loss(info_nce, (4, 16))(*batch(3, None))


@pytest.mark.parametrize("dims", [(), (4, 0), (-1,)])
def test_matryoshka_dims_must_be_above_0(dims):
    with pytest.raises(InputError, match="above 0"):
        matryoshka_loss(info_nce, dims)


# --- margins of a teacher --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_negatives", [0, 2])
def test_margin_kl_equals_numpy(n_negatives):
    rng = np.random.default_rng(0)
    anchors, positives = rng.normal(size=(2, 5, 6))
    negatives = rng.normal(size=(5, n_negatives, 6)) if n_negatives else None
    n_candidates = 5 * (1 + n_negatives)
    teacher, masked = rng.uniform(-1, 1, (5, n_candidates)), rng.random((5, n_candidates)) < 0.2
    masked[:, :5] = False
    candidates = positives if negatives is None else np.concatenate([positives, *negatives.transpose(1, 0, 2)])
    expected = 0.0
    for row, anchor in enumerate(anchors):
        keep = ~masked[row]
        norms = np.linalg.norm(anchor) * np.linalg.norm(candidates[keep], axis=1)
        p, q = (np.exp(scores / 0.1) for scores in (teacher[row, keep], candidates[keep] @ anchor / norms))
        p, q = p / p.sum(), q / q.sum()
        expected += (p * np.log(p / q)).sum() / 5
    tensors = [None if array is None else torch.from_numpy(array) for array in (anchors, positives, negatives)]
    tensors[0].requires_grad_()
    loss = margin_kl(*tensors, teacher=torch.from_numpy(teacher), temperature=0.1, masked=torch.from_numpy(masked))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert tensors[0].grad.isfinite().all()


def test_margin_kl_depends_on_margins_only():
    generator = torch.Generator().manual_seed(0)
    anchors, positives = torch.randn(2, 4, 8, generator=generator)
    cosines = torch.nn.functional.normalize(anchors) @ torch.nn.functional.normalize(positives).T
    assert margin_kl(anchors, positives, None, teacher=cosines - 0.3).item() == pytest.approx(0, abs=1e-5)
    assert margin_kl(anchors, positives, None, teacher=0.5 * cosines).item() > 0.01
