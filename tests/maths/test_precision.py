"""Quantised embeddings against sentence-transformers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import PRECISIONS, quantise


@pytest.fixture(autouse=True)
def few_rows_are_fine(caplog):
    caplog.set_level(logging.ERROR, logger="sentence_transformers")


@pytest.fixture
def vectors():
    made = np.random.default_rng(0).normal(size=(200, 32)).astype(np.float32)
    made[:, 3] = 0.25
    return made


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_every_precision_equals_sentence_transformers(vectors, precision):
    theirs = quantize_embeddings(vectors, precision)
    ours = quantise(vectors, precision)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
@pytest.mark.parametrize("width", [1, 7, 12, 20])
def test_each_row_is_packed_on_its_own_when_the_width_is_no_multiple_of_eight(precision, width):
    vectors = np.random.default_rng(width).normal(size=(4, width)).astype(np.float32)
    np.testing.assert_array_equal(quantise(vectors, precision), quantize_embeddings(vectors, precision))


def test_int8_takes_the_lower_step_for_every_value():
    ramp = np.linspace(0, 255, 1000, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(quantise(ramp, "int8")[:, 0], [int(np.floor(x)) - 128 for x in ramp[:, 0]])


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_one_vector_alone_has_no_range_and_is_refused_as_in_sentence_transformers(vectors, precision):
    with pytest.raises(ValueError, match="single"):
        quantize_embeddings(vectors[:1], precision)
    with pytest.raises(InputError):
        quantise(vectors[:1], precision)


def test_an_unknown_precision_suggests_the_nearest(vectors):
    with pytest.raises(InputError, match="binary"):
        quantise(vectors, "binry")
    assert "float16" not in PRECISIONS
