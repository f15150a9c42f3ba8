"""Limits on the size and the rate of requests."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.limits import Limits, RateLimiter


def test_rates_refill_evenly_and_report_when_to_retry():
    now = [0.0]
    limiter = RateLimiter(Limits(requests_per_minute=60, tokens_per_minute=600), lambda: now[0])
    for _ in range(60):
        limiter.take("ann", "requests", 1)
    with pytest.raises(APIError) as caught:
        limiter.take("ann", "requests", 1)
    assert caught.value.status == 429 and caught.value.retry_after == pytest.approx(1)
    limiter.take("bob", "requests", 1)
    now[0] = 1.001
    limiter.take("ann", "requests", 1)
    limiter.take("ann", "tokens", 5000)  # more than a minute's worth: once, and then nothing for long
    with pytest.raises(APIError) as caught:
        limiter.take("ann", "tokens", 1)
    assert caught.value.retry_after == pytest.approx(440.1, abs=0.1)


def test_limit_of_zero_is_refused():
    with pytest.raises(InputError, match="max_waiting_tokens"):
        Limits(max_waiting_tokens=0)
