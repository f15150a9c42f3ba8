"""Tests of `LayerwiseHead`: vectors, scores of pairs, saving, and reduction of dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.errors import InputError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.pair import PAIR_HEADS

DIM, WIDTHS = 6, (4, 3, 4, 3, 0)
INPUT_WIDTH = len(WIDTHS) * DIM
KINDS = {
    **{name: {"head": name} for name in PAIR_HEADS},
    "hidden": {"head": "gated", "hidden": 7, "shortcut": True},
    "unified": {"mixing": "unified", "mixed_width": 9, "head": "gated"},
    "attention": {"widths": (4,) * 5, "mixing": "attention_codes", "mixed_width": 3, "head": "mlp"},
    "attention to latents": {"widths": (4,) * 5, "mixing": "attention_latents", "mixed_width": 3},
}


def random_head(seed=0, **choices):
    """A head with random parameters, scale and shift."""
    torch.manual_seed(seed)
    net = CodeNet(CodeSpec(**{"dim": DIM, "widths": WIDTHS, **choices}))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    net.set_statistics(torch.randn(5, 1, DIM), 0.5 + torch.rand(5, 1, DIM), standardise=True)
    return LayerwiseHead(net)


@pytest.fixture
def latents():
    return np.random.default_rng(0).normal(size=(9, INPUT_WIDTH)).astype(np.float32)


def encode(head, latents):
    return torch.from_numpy(head(latents))


@pytest.mark.parametrize("kind", KINDS)
def test_saved_head_gives_identical_vectors_and_scores(kind, latents, tmp_path):
    head = random_head(**KINDS[kind])
    head.calibration = Calibration((0.1, 0.5, 1.0), (0.0, 0.4, 1.0))
    head.save(tmp_path / "head.safetensors")
    loaded = LayerwiseHead.load(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(loaded(latents), head(latents))
    vectors = encode(head, latents)
    assert torch.equal(loaded.similarity(vectors, vectors), head.similarity(vectors, vectors))
    assert (loaded.net.spec, loaded.calibration, loaded.dim) == (head.net.spec, head.calibration, head.dim)
    assert loaded.digest() == head.digest()


def test_saved_projection_gives_identical_vectors(latents, tmp_path):
    head = random_head()
    reduced = head.reduce_dim(head(latents), 4)
    reduced.save(tmp_path / "head.safetensors")
    loaded = LayerwiseHead.load(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(loaded(latents), reduced(latents))
    assert (loaded.dim, loaded.digest()) == (4, reduced.digest())


def test_digest_changes_with_every_parameter(latents):
    heads = [random_head(**choices) for choices in KINDS.values()] + [
        random_head(seed=1),
        random_head(dropout=0.1),
        random_head(unit=True),
    ]
    heads.append(random_head())
    heads[-1].net.shift[2, 0, 3] += 1
    heads.append(random_head())
    heads[-1].net.pair.logits[1] += 1
    heads.append(random_head())
    heads[-1].calibration = Calibration((0.0, 1.0), (0.1, 1.0))
    heads += [random_head().reduce_dim(random_head()(latents), dim) for dim in (3, 4)]
    assert len({head.digest() for head in heads}) == len(heads)
    assert random_head().digest() == random_head().digest()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_have_the_dim_of_the_head(kind, latents):
    head = random_head(**KINDS[kind])
    vectors = head(latents)
    assert vectors.shape == (len(latents), head.dim)
    assert vectors.dtype == np.float32
    assert head(latents[:0]).shape == (0, head.dim)


def test_many_rows_equal_small_batches():
    head = random_head(hidden=7)
    latents = np.random.default_rng(1).normal(size=(2500, INPUT_WIDTH)).astype(np.float32)
    batches = [head(latents[begin : begin + 7]) for begin in (0, 1020, 2493)]
    full = head(latents)
    for begin, batch in zip((0, 1020, 2493), batches, strict=True):
        np.testing.assert_allclose(full[begin : begin + 7], batch, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 4, 5])
def test_similarity_equals_similarity_pairwise(kind, columns, latents):
    """Four and five columns are also numbers of blocks: a sum over the wrong axis would be noticed."""
    head = random_head(**KINDS[kind])
    vectors = encode(head, latents)
    table = head.similarity(vectors, vectors[:columns])
    assert table.shape == (len(vectors), columns)
    for row in range(len(vectors)):
        for column in range(columns):
            pair = head.similarity_pairwise(vectors[row : row + 1], vectors[column : column + 1])
            torch.testing.assert_close(table[row, column], pair[0])


def test_similarity_of_many_rows_and_of_none():
    head = random_head(head="gated")
    vectors = encode(head, np.random.default_rng(2).normal(size=(600, INPUT_WIDTH)).astype(np.float32))
    table = head.similarity(vectors, vectors[:3])
    for column in range(3):
        expected = head.similarity_pairwise(vectors, vectors[column : column + 1].expand(600, -1))
        torch.testing.assert_close(table[:, column], expected)
    assert head.similarity(vectors[:0], vectors[:3]).shape == (0, 3)
    assert head.similarity(vectors[:3], vectors[:0]).shape == (3, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_the_network_on_latents(kind, latents):
    head = random_head(**KINDS[kind])
    stacked = torch.from_numpy(latents).reshape(-1, 5, DIM).transpose(0, 1)
    expected = head.net.score(stacked[:, :4], stacked[:, 4:8])
    vectors = encode(head, latents)
    scores = head.similarity_pairwise(vectors[:4], vectors[4:8])
    torch.testing.assert_close(scores, expected.mean(dim=1) if kind == "each" else expected, rtol=1e-4, atol=1e-5)


def test_score_of_the_sum_head_is_the_cosine(latents):
    head = random_head()
    vectors = encode(head, latents).double()
    np.testing.assert_allclose(head.similarity(vectors, vectors), vectors @ vectors.T, atol=1e-6)
    assert not head.has_pair_similarity


@pytest.mark.parametrize("kind", ["sum", "gated", "hidden", "unified", "attention to latents"])
def test_equal_vectors_score_exactly_one(kind):
    head = random_head(**KINDS[kind])
    vectors = encode(head, np.random.default_rng(3).normal(size=(50, INPUT_WIDTH)).astype(np.float32))
    assert (head.similarity_pairwise(vectors, vectors.clone()) == 1).all()
    assert (head.similarity(vectors, vectors.clone()).diagonal() == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_cosines_of_equal_vectors_are_exactly_one(kind, latents):
    head = random_head(**KINDS[kind])
    vectors = encode(head, latents)
    assert (head.pair_cosines(vectors, vectors.clone()) == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_symmetric(kind, latents):
    head = random_head(**KINDS[kind])
    left, right = encode(head, latents)[:4], encode(head, latents)[4:8]
    assert torch.equal(head.similarity_pairwise(left, right), head.similarity_pairwise(right, left))
    torch.testing.assert_close(head.similarity(left, right), head.similarity(right, left).T)


def test_length_of_a_stored_vector_does_not_matter(latents):
    head = random_head(head="mlp")
    vectors = encode(head, latents)
    torch.testing.assert_close(head.similarity(3 * vectors, vectors), head.similarity(vectors, vectors))


def wide_head():
    """A head of 96 dimensions with latents of low rank, like real ones."""
    torch.manual_seed(4)
    head = LayerwiseHead(CodeNet(CodeSpec(16, (32, 32, 32))))
    rng = np.random.default_rng(4)
    low_rank = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 48)) + 0.05 * rng.normal(size=(300, 48))
    return head, low_rank.astype(np.float32)


def cosines(rows):
    rows = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows @ rows.T


def test_reduced_vectors_keep_the_cosines_approximately():
    head, latents = wide_head()
    reduced = head.reduce_dim(head(latents[:200]), 24)
    new = latents[200:]
    assert reduced(new).shape == (100, 24)
    np.testing.assert_allclose(np.linalg.norm(reduced(new), axis=1), 1, atol=1e-6)
    error = np.abs(cosines(reduced(new)) - cosines(head(new)))
    assert error.max() < 0.02
    random = np.linalg.qr(np.random.default_rng(5).normal(size=(96, 24)))[0]
    assert error.mean() < np.abs(cosines(head(new) @ random) - cosines(head(new))).mean() / 10


def test_reduction_equals_numpys_svd():
    head, latents = wide_head()
    vectors = head(latents)
    _, _, axes = np.linalg.svd(vectors.astype(np.float64), full_matrices=False)
    reduced = head.reduce_dim(vectors, 6)(latents)
    np.testing.assert_allclose(cosines(reduced), cosines(vectors @ axes[:6].T), atol=1e-4)


def test_reduction_is_deterministic_and_keeps_the_rng_state(latents):
    head = random_head()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second = (head.reduce_dim(head(latents), 4) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert first.digest() == second.digest()


@pytest.mark.parametrize(("dim", "texts"), [(0, 9), (-1, 9), (20, 9), (21, 9), (8, 7)])
def test_invalid_reductions_are_refused(dim, texts, latents):
    head = random_head()
    assert head.dim == 20
    with pytest.raises(InputError, match=f"{dim} dimensions from {texts} texts"):
        head.reduce_dim(head(latents[:texts]), dim)


def test_reducing_other_vectors_is_refused(latents):
    head = random_head()
    with pytest.raises(InputError, match="whole vectors of 20 dimensions"):
        head.reduce_dim(latents, 4)
    reduced = head.reduce_dim(head(latents), 6)
    with pytest.raises(InputError, match="whole vectors of 20 dimensions"):
        reduced.reduce_dim(reduced(latents), 4)


def test_reduced_vectors_have_no_blocks_to_compare(latents):
    head = random_head(head="sum")
    reduced = head.reduce_dim(head(latents), 4)
    vectors = encode(reduced, latents)
    assert not reduced.has_pair_similarity
    for compare in (reduced.similarity, reduced.similarity_pairwise, reduced.contributions):
        with pytest.raises(InputError, match="a truncated vector has lost its blocks"):
            compare(vectors, vectors)


@pytest.mark.parametrize("width", [0, 1, 19, 21, 40])
def test_vectors_of_the_wrong_dim_are_refused(width, latents):
    head = random_head(head="mlp")
    good, bad = encode(head, latents), torch.zeros(9, width)
    for left, right in ((good, bad), (bad, good)):
        with pytest.raises(InputError, match=f"of 20 dimensions, not {width}"):
            head.similarity(left, right)
        with pytest.raises(InputError, match=f"of 20 dimensions, not {width}"):
            head.similarity_pairwise(left, right)


@pytest.mark.parametrize("shape", [(5, DIM), (10, DIM), (9, INPUT_WIDTH + 1)])
def test_latents_of_the_wrong_width_are_refused(shape):
    """Five rows of one reading have as many values as one row of five."""
    with pytest.raises(InputError, match=f"rows of {INPUT_WIDTH} values, .* not {shape[1]}"):
        random_head()(np.ones(shape, np.float32))


def test_head_is_frozen_and_deterministic(latents):
    head = random_head(dropout=0.5, noise=1.0, hidden=7)
    assert not any(parameter.requires_grad for parameter in head.net.parameters())
    np.testing.assert_array_equal(head(latents), head(latents))
