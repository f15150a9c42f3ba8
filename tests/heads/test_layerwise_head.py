"""A layerwise network as the head of an encoder: vectors, scores of pairs, saving, cutting."""

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
READ = len(WIDTHS) * DIM
KINDS = {
    **{name: {"head": name} for name in PAIR_HEADS},
    "hidden": {"head": "gated", "hidden": 7, "shortcut": True},
    "unified": {"mixing": "unified", "mixed_width": 9, "head": "gated"},
    "attention": {"widths": (4,) * 5, "mixing": "attention_codes", "mixed_width": 3, "head": "mlp"},
    "attention to latents": {"widths": (4,) * 5, "mixing": "attention_latents", "mixed_width": 3},
}


def made(seed=0, **choices):
    """A head whose every number is random, with a scale and a shift for the latents."""
    torch.manual_seed(seed)
    net = CodeNet(CodeSpec(**{"dim": DIM, "widths": WIDTHS, **choices}))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    net.set_statistics(torch.randn(5, 1, DIM), 0.5 + torch.rand(5, 1, DIM), standardise=True)
    return LayerwiseHead(net)


@pytest.fixture
def latents():
    return np.random.default_rng(0).normal(size=(9, READ)).astype(np.float32)


def vectors_of(head, latents):
    return torch.from_numpy(head(latents))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_gives_identical_vectors_and_scores(kind, latents, tmp_path):
    head = made(**KINDS[kind])
    head.calibration = Calibration((0.1, 0.5, 1.0), (0.0, 0.4, 1.0))
    head.save(tmp_path / "head.safetensors")
    again = LayerwiseHead.load(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(again(latents), head(latents))
    vectors = vectors_of(head, latents)
    assert torch.equal(again.similarity(vectors, vectors), head.similarity(vectors, vectors))
    assert (again.net.spec, again.calibration, again.dim) == (head.net.spec, head.calibration, head.dim)
    assert again.digest() == head.digest()


def test_a_saved_cut_gives_identical_vectors(latents, tmp_path):
    head = made()
    short = head.reduce_dim(head(latents), 4)
    short.save(tmp_path / "head.safetensors")
    again = LayerwiseHead.load(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(again(latents), short(latents))
    assert (again.dim, again.digest()) == (4, short.digest())


def test_the_digest_changes_with_everything_that_changes_a_vector_or_a_score(latents):
    heads = [made(**choices) for choices in KINDS.values()] + [made(seed=1), made(dropout=0.1), made(unit=True)]
    heads.append(made())
    heads[-1].net.shift[2, 0, 3] += 1
    heads.append(made())
    heads[-1].net.pair.logits[1] += 1
    heads.append(made())
    heads[-1].calibration = Calibration((0.0, 1.0), (0.1, 1.0))
    heads += [made().reduce_dim(made()(latents), dim) for dim in (3, 4)]
    assert len({head.digest() for head in heads}) == len(heads)
    assert made().digest() == made().digest()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_rows_of_the_size_the_head_says(kind, latents):
    head = made(**KINDS[kind])
    vectors = head(latents)
    assert vectors.shape == (len(latents), head.dim)
    assert vectors.dtype == np.float32
    assert head(latents[:0]).shape == (0, head.dim)


def test_many_rows_are_those_of_a_few_at_a_time():
    head = made(hidden=7)
    latents = np.random.default_rng(1).normal(size=(2500, READ)).astype(np.float32)
    parts = [head(latents[begin : begin + 7]) for begin in (0, 1020, 2493)]
    whole = head(latents)
    for begin, part in zip((0, 1020, 2493), parts, strict=True):
        np.testing.assert_allclose(whole[begin : begin + 7], part, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 4, 5])
def test_scores_of_all_with_all_equal_those_pair_by_pair(kind, columns, latents):
    """Four and five columns are as many as there are blocks somewhere: a sum over the wrong ones would show."""
    head = made(**KINDS[kind])
    vectors = vectors_of(head, latents)
    table = head.similarity(vectors, vectors[:columns])
    assert table.shape == (len(vectors), columns)
    for row in range(len(vectors)):
        for column in range(columns):
            pair = head.similarity_pairwise(vectors[row : row + 1], vectors[column : column + 1])
            torch.testing.assert_close(table[row, column], pair[0])


def test_more_rows_than_one_slice_and_none_at_all():
    head = made(head="gated")
    vectors = vectors_of(head, np.random.default_rng(2).normal(size=(600, READ)).astype(np.float32))
    table = head.similarity(vectors, vectors[:3])
    for column in range(3):
        expected = head.similarity_pairwise(vectors, vectors[column : column + 1].expand(600, -1))
        torch.testing.assert_close(table[:, column], expected)
    assert head.similarity(vectors[:0], vectors[:3]).shape == (0, 3)
    assert head.similarity(vectors[:3], vectors[:0]).shape == (3, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_network_on_the_latents(kind, latents):
    head = made(**KINDS[kind])
    stacked = torch.from_numpy(latents).reshape(-1, 5, DIM).transpose(0, 1)
    expected = head.net.score(stacked[:, :4], stacked[:, 4:8])
    vectors = vectors_of(head, latents)
    found = head.similarity_pairwise(vectors[:4], vectors[4:8])
    torch.testing.assert_close(found, expected.mean(dim=1) if kind == "each" else expected, rtol=1e-4, atol=1e-5)


def test_under_the_head_sum_the_score_is_the_cosine_of_the_vectors(latents):
    head = made()
    vectors = vectors_of(head, latents).double()
    np.testing.assert_allclose(head.similarity(vectors, vectors), vectors @ vectors.T, atol=1e-6)
    assert not head.has_pair_similarity


@pytest.mark.parametrize("kind", ["sum", "gated", "hidden", "unified", "attention to latents"])
def test_equal_vectors_score_exactly_one(kind):
    head = made(**KINDS[kind])
    vectors = vectors_of(head, np.random.default_rng(3).normal(size=(50, READ)).astype(np.float32))
    assert (head.similarity_pairwise(vectors, vectors.clone()) == 1).all()
    assert (head.similarity(vectors, vectors.clone()).diagonal() == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_cosines_of_equal_vectors_are_exactly_one(kind, latents):
    head = made(**KINDS[kind])
    vectors = vectors_of(head, latents)
    assert (head.pair_cosines(vectors, vectors.clone()) == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_symmetric(kind, latents):
    head = made(**KINDS[kind])
    left, right = vectors_of(head, latents)[:4], vectors_of(head, latents)[4:8]
    assert torch.equal(head.similarity_pairwise(left, right), head.similarity_pairwise(right, left))
    torch.testing.assert_close(head.similarity(left, right), head.similarity(right, left).T)


def test_length_of_a_stored_vector_does_not_matter(latents):
    head = made(head="mlp")
    vectors = vectors_of(head, latents)
    torch.testing.assert_close(head.similarity(3 * vectors, vectors), head.similarity(vectors, vectors))


def wide_head():
    """A head of 96 dimensions whose latents lie near a few directions, as real ones do."""
    torch.manual_seed(4)
    head = LayerwiseHead(CodeNet(CodeSpec(16, (32, 32, 32))))
    rng = np.random.default_rng(4)
    few = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 48)) + 0.05 * rng.normal(size=(300, 48))
    return head, few.astype(np.float32)


def cosines(rows):
    rows = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows @ rows.T


def test_a_cut_vector_has_nearly_the_cosines_of_the_whole_one():
    head, latents = wide_head()
    short = head.reduce_dim(head(latents[:200]), 24)
    new = latents[200:]
    assert short(new).shape == (100, 24)
    np.testing.assert_allclose(np.linalg.norm(short(new), axis=1), 1, atol=1e-6)
    error = np.abs(cosines(short(new)) - cosines(head(new)))
    assert error.max() < 0.02
    random = np.linalg.qr(np.random.default_rng(5).normal(size=(96, 24)))[0]
    assert error.mean() < np.abs(cosines(head(new) @ random) - cosines(head(new))).mean() / 10


def test_a_cut_is_that_of_numpys_svd():
    head, latents = wide_head()
    vectors = head(latents)
    _, _, axes = np.linalg.svd(vectors.astype(np.float64), full_matrices=False)
    short = head.reduce_dim(vectors, 6)(latents)
    np.testing.assert_allclose(cosines(short), cosines(vectors @ axes[:6].T), atol=1e-4)


def test_the_same_cut_twice_is_the_same_and_leaves_the_random_state_alone(latents):
    head = made()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second = (head.reduce_dim(head(latents), 4) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert first.digest() == second.digest()


@pytest.mark.parametrize(("dim", "texts"), [(0, 9), (-1, 9), (20, 9), (21, 9), (8, 7)])
def test_a_cut_that_is_none_or_has_too_few_texts_is_refused(dim, texts, latents):
    head = made()
    assert head.dim == 20
    with pytest.raises(InputError, match=f"{dim} dimensions from {texts} texts"):
        head.reduce_dim(head(latents[:texts]), dim)


def test_cutting_what_is_no_whole_vector_is_refused(latents):
    head = made()
    with pytest.raises(InputError, match="whole vectors of 20 dimensions"):
        head.reduce_dim(latents, 4)
    short = head.reduce_dim(head(latents), 6)
    with pytest.raises(InputError, match="whole vectors of 20 dimensions"):
        short.reduce_dim(short(latents), 4)


def test_a_cut_vector_has_no_blocks_to_compare(latents):
    head = made(head="sum")
    short = head.reduce_dim(head(latents), 4)
    vectors = vectors_of(short, latents)
    assert not short.has_pair_similarity
    for compare in (short.similarity, short.similarity_pairwise, short.contributions):
        with pytest.raises(InputError, match="a truncated vector has lost its blocks"):
            compare(vectors, vectors)


@pytest.mark.parametrize("width", [0, 1, 19, 21, 40])
def test_vectors_of_a_wrong_width_are_refused(width, latents):
    head = made(head="mlp")
    good, bad = vectors_of(head, latents), torch.zeros(9, width)
    for left, right in ((good, bad), (bad, good)):
        with pytest.raises(InputError, match=f"of 20 dimensions, not {width}"):
            head.similarity(left, right)
        with pytest.raises(InputError, match=f"of 20 dimensions, not {width}"):
            head.similarity_pairwise(left, right)


@pytest.mark.parametrize("shape", [(5, DIM), (10, DIM), (9, READ + 1)])
def test_latents_of_a_wrong_width_are_refused(shape):
    """Five rows of one reading are as many numbers as one row of five."""
    with pytest.raises(InputError, match=f"rows of {READ} values, .* not {shape[1]}"):
        made()(np.ones(shape, np.float32))


def test_a_head_is_not_trainable_and_drops_nothing(latents):
    head = made(dropout=0.5, noise=1.0, hidden=7)
    assert not any(parameter.requires_grad for parameter in head.net.parameters())
    np.testing.assert_array_equal(head(latents), head(latents))
