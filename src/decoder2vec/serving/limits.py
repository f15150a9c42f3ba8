"""How much may be asked at once, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from decoder2vec.errors import InputError
from decoder2vec.serving.api_errors import APIError

_HOLDERS = 10_000
"""Holders whose rates are remembered; there are only as many as there are keys."""


@dataclass(frozen=True)
class Limits:
    """What one request may hold, and what all may hold together."""

    body_bytes: int = 8 << 20
    body_seconds: float = 30.0
    """In which a body must have arrived."""
    texts: int = 2_048
    """Of one request."""
    request_tokens: int = 131_072
    """Of one request, before its texts are cut to the length the model reads."""
    waiting_tokens: int = 262_144
    """Of all requests that wait; more are told to come back."""
    batch_tokens: int | None = None
    """Of a batch; by default what suits the device."""
    jobs: int = 64
    """Searches, matches and the like that are under way or wait for a thread."""
    requests_per_minute: int | None = None
    """For each key."""
    tokens_per_minute: int | None = None
    """For each key."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise InputError(f"The limit {name} is {value}; give a number above 0.")

    def check_texts(self, count: int) -> None:
        """Refuse too many texts."""
        if count > self.texts:
            raise APIError(413, f"{count} texts in one request; at most {self.texts} are taken.", code="too_many_texts")

    def check_tokens(self, count: int) -> None:
        """Refuse too many tokens."""
        if count > self.request_tokens:
            raise APIError(
                413,
                f"{count} tokens in one request; at most {self.request_tokens} are taken. Send it in parts.",
                code="too_many_tokens",
            )


class Rates:
    """Requests and tokens of each holder of a key, refilled evenly: a minute's worth may be used at once."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        per_minute = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self._per_minute = {what: limit for what, limit in per_minute.items() if limit is not None}
        self._left: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, holder: str, what: str, count: int) -> None:
        """Use up so many requests or tokens, or refuse and say when there will be enough.

        What is larger than a minute's worth is let through once a whole minute's worth is there.
        """
        limit = self._per_minute.get(what)
        if limit is None:
            return
        now = self._clock()
        left, before = self._left.get((holder, what), (float(limit), now))
        left = min(float(limit), left + (now - before) * limit / 60)
        needed = min(count, limit)
        if left < needed:
            message = f"Over the limit of {limit} {what} a minute; come back later."
            raise APIError(429, message, code="rate_limit_exceeded", wait=(needed - left) * 60 / limit)
        if len(self._left) > _HOLDERS:
            self._left.clear()
        self._left[holder, what] = (left - count, now)
