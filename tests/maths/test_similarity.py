"""Similarities and quantised embeddings against plain loops and sentence-transformers."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from sentence_transformers import SimilarityFunction
from sentence_transformers.util.quantization import quantize_embeddings

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import (
    PRECISIONS,
    SIMILARITIES,
    pairwise_similarity,
    quantise,
    similarity_matrix,
)

NAMES = ("cosine", "dot", "euclidean", "manhattan")


def similarity_by_loop(name, a, b):
    if name == "dot":
        return sum(x * y for x, y in zip(a, b, strict=True))
    if name == "cosine":
        return similarity_by_loop("dot", a, b) / math.sqrt(
            similarity_by_loop("dot", a, a) * similarity_by_loop("dot", b, b)
        )
    if name == "euclidean":
        return -math.dist(a, b)
    return -sum(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(6, 5)).astype(np.float32)


def test_names_are_those_of_sentence_transformers():
    assert SIMILARITIES == NAMES
    assert set(NAMES) <= set(SimilarityFunction.possible_values())


@pytest.mark.parametrize("name", NAMES)
def test_similarities_equal_a_plain_loop(rows, name):
    a, b = (matrix.tolist() for matrix in rows)
    np.testing.assert_allclose(
        similarity_matrix(name, *rows), [[similarity_by_loop(name, x, y) for y in b] for x in a], rtol=1e-4
    )
    pairs = [similarity_by_loop(name, x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(pairwise_similarity(name, *rows), pairs, rtol=1e-4)


CONVERTERS = {
    "numpy": lambda rows: rows,
    "tensor": torch.from_numpy,
    "bfloat16 tensor": lambda rows: torch.from_numpy(rows).bfloat16(),
    "lists of numbers": lambda rows: rows.tolist(),
    "list of arrays": list,
    "list of tensors": lambda rows: list(torch.from_numpy(rows)),
    "one vector": lambda rows: rows[0],
}


@pytest.mark.parametrize("kind", CONVERTERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_input_type_equals_sentence_transformers(rows, name, kind):
    a, b = map(CONVERTERS[kind], rows)
    torch.testing.assert_close(similarity_matrix(name, a, b), SimilarityFunction.to_similarity_fn(name)(a, b))
    expected = SimilarityFunction.to_similarity_pairwise_fn(name)(a, b)
    torch.testing.assert_close(pairwise_similarity(name, a, b), expected.reshape(-1))


@pytest.mark.parametrize("name", NAMES)
def test_reversed_arrays_are_accepted(rows, name):
    """torch and sentence-transformers raise an error for them."""
    a, b = (matrix[::-1] for matrix in rows)
    torch.testing.assert_close(similarity_matrix(name, a, b), similarity_matrix(name, a.copy(), b.copy()))
    torch.testing.assert_close(pairwise_similarity(name, a, b), pairwise_similarity(name, a.copy(), b.copy()))


@pytest.mark.parametrize("name", NAMES)
def test_many_rows_equal_sentence_transformers(name):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(70, 33)).astype(np.float32), rng.normal(size=(50, 33)).astype(np.float32)
    matrix = similarity_matrix(name, a, b)
    assert matrix.shape == (70, 50)
    torch.testing.assert_close(matrix, SimilarityFunction.to_similarity_fn(name)(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_16_bit_embeddings_are_float32(rows, name):
    half = [torch.from_numpy(matrix).bfloat16() for matrix in rows]
    assert similarity_matrix(name, *half).dtype == torch.float32
    assert pairwise_similarity(name, *half).dtype == torch.float32


def test_cosine_with_a_zero_vector_is_zero():
    assert similarity_matrix("cosine", np.zeros((1, 3)), np.ones((1, 3))).item() == 0.0


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_equal_vectors_have_a_cosine_of_exactly_one(width):
    rows = np.random.default_rng(2).normal(size=(50, width)).astype(np.float32)
    assert (pairwise_similarity("cosine", rows, rows.copy()) == 1).all()
    assert (similarity_matrix("cosine", rows, rows.copy()).diagonal() == 1).all()


def test_cosines_with_one_huge_dimension_equal_float64():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 40, 256)).astype(np.float32)
    a[:, 7] += 3000
    b[:, 7] += 3000
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_array_equal(pairwise_similarity("cosine", a, b), expected.astype(np.float32))
    np.testing.assert_array_equal(similarity_matrix("cosine", a, b).diagonal(), expected.astype(np.float32))


# --- quantised embeddings --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_warning_about_few_rows(caplog):
    caplog.set_level(logging.ERROR, logger="sentence_transformers")


@pytest.fixture
def vectors():
    matrix = np.random.default_rng(0).normal(size=(200, 32)).astype(np.float32)
    matrix[:, 3] = 0.25
    return matrix


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_every_precision_equals_sentence_transformers(vectors, precision):
    expected = quantize_embeddings(vectors, precision)
    result = quantise(vectors, precision)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
@pytest.mark.parametrize("width", [1, 7, 12, 20])
def test_rows_are_packed_separately_at_any_width(precision, width):
    vectors = np.random.default_rng(width).normal(size=(4, width)).astype(np.float32)
    np.testing.assert_array_equal(quantise(vectors, precision), quantize_embeddings(vectors, precision))


def test_int8_rounds_down():
    ramp = np.linspace(0, 255, 1000, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(quantise(ramp, "int8")[:, 0], [int(np.floor(x)) - 128 for x in ramp[:, 0]])


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_single_vector_is_refused_as_in_sentence_transformers(vectors, precision):
    with pytest.raises(ValueError, match="single"):
        quantize_embeddings(vectors[:1], precision)
    with pytest.raises(InputError):
        quantise(vectors[:1], precision)


def test_unknown_precision_suggests_the_nearest(vectors):
    with pytest.raises(InputError, match="binary"):
        quantise(vectors, "binry")
    assert "float16" not in PRECISIONS
