"""Limits on the size and the rate of requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from decoder2vec.errors import InputError
from decoder2vec.serving.api_errors import APIError

_MAX_CLIENTS = 10_000
"""Clients whose rates are kept; there are only as many as there are API keys."""


@dataclass(frozen=True)
class Limits:
    """Limits for one request, for all requests together, and for each API key. Every limit is above 0."""

    max_body_bytes: int = 8 << 20
    """Size of a request body."""
    body_timeout: float = 30.0
    """Seconds in which a request body must arrive."""
    file_timeout: float = 120.0
    """Seconds in which an uploaded file must be read."""
    max_texts: int = 2_048
    """Texts in one request."""
    max_request_tokens: int = 131_072
    """Tokens that the model reads for one request: texts are counted after truncation to its maximum length."""
    max_waiting_tokens: int = 262_144
    """Tokens of all requests in the queue; further requests get a 429."""
    max_batch_tokens: int | None = None
    """Tokens encoded in one batch; by default chosen for the device."""
    max_jobs: int = 64
    """Searches, matches, reranks and comparisons that run or wait for a thread; as many files to read besides."""
    requests_per_minute: int | None = None
    """For each API key; None: no limit."""
    tokens_per_minute: int | None = None
    """For each API key; None: no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise InputError(f"The limit {name} is {value}; give a number above 0.")

    def check_texts(self, count: int) -> None:
        """Raise a 413 if one request has too many texts."""
        if count > self.max_texts:
            raise APIError(
                413,
                f"{count} texts in one request; split it into requests of at most {self.max_texts}.",
                code="too_many_texts",
            )

    def check_tokens(self, count: int) -> None:
        """Raise a 413 if one request has too many tokens."""
        if count > self.max_request_tokens:
            raise APIError(
                413,
                f"{count} tokens in one request; split it into requests of at most {self.max_request_tokens}.",
                code="too_many_tokens",
            )


class RateLimiter:
    """Token buckets for the requests and tokens of each client: refilled evenly, and full after one minute.

    Args:
        limits: Its `requests_per_minute` and `tokens_per_minute` are enforced.
        clock: Returns the time in seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        per_minute = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self._per_minute = {resource: limit for resource, limit in per_minute.items() if limit is not None}
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}
        """(remaining, time of the last update) by client and resource."""

    def take(self, client: str, resource: str, count: int) -> None:
        """Take `count` "requests" or "tokens" from a client's bucket, or raise a 429 with the time to wait.

        A request larger than the whole bucket is allowed when the bucket is full.
        """
        limit = self._per_minute.get(resource)
        if limit is None:
            return
        now = self._clock()
        remaining, updated = self._buckets.get((client, resource), (float(limit), now))
        remaining = min(float(limit), remaining + (now - updated) * limit / 60)
        needed = min(count, limit)
        if remaining < needed:
            message = f"Over the limit of {limit} {resource} a minute; try again later."
            raise APIError(429, message, code="rate_limit_exceeded", retry_after=(needed - remaining) * 60 / limit)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.clear()
        self._buckets[client, resource] = (remaining - count, now)
