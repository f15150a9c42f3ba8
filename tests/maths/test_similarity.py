"""Similarities against plain loops and against sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sentence_transformers import SimilarityFunction

from decoder2vec.maths.similarity import SIMILARITIES, pairwise_similarity, similarity_matrix

NAMES = ("cosine", "dot", "euclidean", "manhattan")


def by_hand(name, a, b):
    if name == "dot":
        return sum(x * y for x, y in zip(a, b, strict=True))
    if name == "cosine":
        return by_hand("dot", a, b) / math.sqrt(by_hand("dot", a, a) * by_hand("dot", b, b))
    if name == "euclidean":
        return -math.dist(a, b)
    return -sum(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(6, 5)).astype(np.float32)


def test_the_names_are_those_of_sentence_transformers():
    assert SIMILARITIES == NAMES
    assert set(NAMES) <= set(SimilarityFunction.possible_values())


@pytest.mark.parametrize("name", NAMES)
def test_similarities_equal_a_plain_loop(rows, name):
    a, b = (part.tolist() for part in rows)
    np.testing.assert_allclose(similarity_matrix(name, *rows), [[by_hand(name, x, y) for y in b] for x in a], rtol=1e-4)
    pairs = [by_hand(name, x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(pairwise_similarity(name, *rows), pairs, rtol=1e-4)


AS = {
    "numpy": lambda rows: rows,
    "tensor": torch.from_numpy,
    "bfloat16 tensor": lambda rows: torch.from_numpy(rows).bfloat16(),
    "lists of numbers": lambda rows: rows.tolist(),
    "list of arrays": list,
    "list of tensors": lambda rows: list(torch.from_numpy(rows)),
    "one vector": lambda rows: rows[0],
}


@pytest.mark.parametrize("kind", AS)
@pytest.mark.parametrize("name", NAMES)
def test_similarities_equal_sentence_transformers_for_all_kinds_of_input(rows, name, kind):
    a, b = map(AS[kind], rows)
    torch.testing.assert_close(similarity_matrix(name, a, b), SimilarityFunction.to_similarity_fn(name)(a, b))
    theirs = SimilarityFunction.to_similarity_pairwise_fn(name)(a, b)
    torch.testing.assert_close(pairwise_similarity(name, a, b), theirs.reshape(-1))


@pytest.mark.parametrize("name", NAMES)
def test_reversed_arrays_are_taken_too(rows, name):
    """torch and sentence-transformers refuse them."""
    a, b = (part[::-1] for part in rows)
    torch.testing.assert_close(similarity_matrix(name, a, b), similarity_matrix(name, a.copy(), b.copy()))
    torch.testing.assert_close(pairwise_similarity(name, a, b), pairwise_similarity(name, a.copy(), b.copy()))


@pytest.mark.parametrize("name", NAMES)
def test_many_rows_equal_sentence_transformers(name):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(70, 33)).astype(np.float32), rng.normal(size=(50, 33)).astype(np.float32)
    found = similarity_matrix(name, a, b)
    assert found.shape == (70, 50)
    torch.testing.assert_close(found, SimilarityFunction.to_similarity_fn(name)(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_16_bit_embeddings_are_float32(rows, name):
    half = [torch.from_numpy(part).bfloat16() for part in rows]
    assert similarity_matrix(name, *half).dtype == torch.float32
    assert pairwise_similarity(name, *half).dtype == torch.float32


def test_a_zero_vector_is_similar_to_nothing():
    assert similarity_matrix("cosine", np.zeros((1, 3)), np.ones((1, 3))).item() == 0.0


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_equal_vectors_have_a_cosine_of_exactly_one(width):
    rows = np.random.default_rng(2).normal(size=(50, width)).astype(np.float32)
    assert (pairwise_similarity("cosine", rows, rows.copy()) == 1).all()
    assert (similarity_matrix("cosine", rows, rows.copy()).diagonal() == 1).all()


def test_cosines_are_those_of_float64_where_one_dimension_is_huge():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 40, 256)).astype(np.float32)
    a[:, 7] += 3000
    b[:, 7] += 3000
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_array_equal(pairwise_similarity("cosine", a, b), expected.astype(np.float32))
    np.testing.assert_array_equal(similarity_matrix("cosine", a, b).diagonal(), expected.astype(np.float32))
