"""Cached vectors: eviction, keys, and which texts are still encoded."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import EncoderError
from decoder2vec.serving.batcher import Batcher
from decoder2vec.serving.vector_cache import BatchKey, CachedBatcher, VectorCache

KEY = BatchKey("model")


def test_cache_evicts_the_least_recently_used_and_stays_small():
    max_bytes = 3 * (4 * 64 + 300)
    cache = VectorCache(max_bytes / 2**20)
    vector = np.arange(64, dtype=np.float32)
    for text in "abc":
        cache.put(KEY, text, vector)
    assert cache.get(KEY, "a") is not None
    cache.put(KEY, "d", vector)
    assert [text for text in "abcd" if cache.get(KEY, text) is not None] == ["a", "c", "d"]
    for number in range(100):
        cache.put(KEY, str(number), vector)
    assert cache.bytes <= max_bytes


def test_same_text_under_another_key_is_not_found():
    cache = VectorCache(1)
    cache.put(KEY, "a", np.ones(2, np.float32))
    assert cache.get(BatchKey("other"), "a") is None and cache.get(BatchKey("model", "query"), "a") is None
    assert cache.get(BatchKey("model", "\0a"), "") is None


@pytest.fixture
def cached_batcher():
    """cached_batcher(encode) -> a CachedBatcher, closed after the test."""
    created = []

    def make(encode):
        created.append(CachedBatcher(Batcher(encode, 100, 100), VectorCache(1)))
        return created[-1]

    yield make
    for batcher in created:
        batcher.batcher.close()


def test_only_missing_texts_are_encoded_in_order(cached_batcher):
    encoded = []

    def encode(key, texts):
        encoded.extend(texts)
        return np.array([[float(text)] for text in texts], np.float32)

    batcher = cached_batcher(encode)
    batcher.encode(KEY, ["2", "4"], [1, 1])
    vectors = batcher.encode(KEY, ["1", "2", "3", "4", "1"], [1] * 5)
    assert vectors[:, 0].tolist() == [1, 2, 3, 4, 1]
    assert encoded == ["2", "4", "1", "3", "1"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_an_encoder_error(value, cached_batcher):
    def encode(key, texts):
        return np.array([[1.0, value if text == "bad" else 0.0] for text in texts], np.float32)

    batcher = cached_batcher(encode)
    for _ in range(2):  # the second time from the cache, if it were cached
        with pytest.raises(EncoderError, match="not finite"):
            batcher.encode(KEY, ["good", "bad"], [1, 1])
    assert batcher.encode(KEY, ["good"], [1]).tolist() == [[1, 0]]
