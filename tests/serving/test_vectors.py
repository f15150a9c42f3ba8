"""Vectors that are remembered, keys, and limits by the minute."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.batcher import Batcher
from decoder2vec.serving.limits import Limits, Rates
from decoder2vec.serving.middleware import Keys
from decoder2vec.serving.vectors import Cache, CachedVectors, Key

KEY = Key("model")


def test_the_cache_forgets_what_was_not_used_for_longest_and_never_grows():
    room = 3 * (4 * 64 + 300)
    cache = Cache(room / 2**20)
    vector = np.arange(64, dtype=np.float32)
    for name in "abc":
        cache.put(KEY, name, vector)
    assert cache.get(KEY, "a") is not None
    cache.put(KEY, "d", vector)
    assert [name for name in "abcd" if cache.get(KEY, name) is not None] == ["a", "c", "d"]
    for number in range(100):
        cache.put(KEY, str(number), vector)
    assert cache.bytes <= room


def test_the_same_text_under_another_key_is_another_text():
    cache = Cache(1)
    cache.put(KEY, "a", np.ones(2, np.float32))
    assert cache.get(Key("other"), "a") is None and cache.get(Key("model", "query"), "a") is None
    assert cache.get(Key("model", "\0a"), "") is None


def test_only_what_is_not_remembered_is_read_and_the_order_is_kept():
    asked = []

    def read(key, texts):
        asked.extend(texts)
        return np.array([[float(text)] for text in texts], np.float32)

    vectors = CachedVectors(Batcher(read, 100, 100), Cache(1))
    try:
        vectors.wait_for(KEY, ["2", "4"], [1, 1])
        found = vectors.wait_for(KEY, ["1", "2", "3", "4", "1"], [1] * 5)
        assert found[:, 0].tolist() == [1, 2, 3, 4, 1]
        assert asked == ["2", "4", "1", "3", "1"]
    finally:
        vectors.batcher.close()


def test_any_of_the_keys_opens_and_nothing_else_does():
    keys = Keys(["first-key", "second-key"])
    assert keys.holder("Bearer first-key") != keys.holder("bearer second-key") is not None
    for wrong in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer first",
        "Bearer first-key2",
        "Basic first-key",
        "first-key",
        "Bearer é",
    ):
        assert keys.holder(wrong) is None
    assert Keys().holder("") == "anybody"
    for bad in ("", "two words", "schlüssel"):
        with pytest.raises(InputError, match="API key"):
            Keys([bad])


def test_every_key_is_compared_to_its_end(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: bool(compared.append((a, b))) or a == b)
    keys = Keys(["one", "two", "three"])
    keys.holder("Bearer one")
    assert len(compared) == 3 and all(len(a) == len(b) == 32 for a, b in compared)


def test_rates_refill_evenly_and_say_when():
    now = [0.0]
    rates = Rates(Limits(requests_per_minute=60, tokens_per_minute=600), lambda: now[0])
    for _ in range(60):
        rates.take("ann", "requests", 1)
    with pytest.raises(APIError) as caught:
        rates.take("ann", "requests", 1)
    assert caught.value.status == 429 and caught.value.wait == pytest.approx(1)
    rates.take("bob", "requests", 1)
    now[0] = 1.001
    rates.take("ann", "requests", 1)
    rates.take("ann", "tokens", 5000)  # more than a minute's worth: once, and then long nothing
    with pytest.raises(APIError) as caught:
        rates.take("ann", "tokens", 1)
    assert caught.value.wait == pytest.approx(440.1, abs=0.1)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(InputError, match="waiting_tokens"):
        Limits(waiting_tokens=0)
