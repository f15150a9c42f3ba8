"""The middleware in front of all routes: host, API key, rate limit, body size, error responses, headers and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
import traceback
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoder2vec.errors import InputError
from decoder2vec.serving.api_errors import APIError, api_error_of
from decoder2vec.serving.limits import Limits, RateLimiter
from decoder2vec.serving.metrics import Metrics

log = logging.getLogger(__name__)

_RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PUBLIC_PATHS = ("/", "/health")
"""Paths that need no API key; nor do the files of the page, which hold no data."""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
_DRAIN_FACTOR = 8
"""A body of up to this many times the limit is received and discarded: most clients read a response only then."""


class APIKeys:
    """The accepted API keys; without any, every request is accepted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        stripped = [key.strip() for key in keys]
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in stripped):
            raise InputError("An API key is one word of printable ASCII characters.")
        self._digests = [_digest(key) for key in stripped]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def client_id(self, authorization: str) -> str | None:
        """Return an id for the key in an Authorization header, or None if the key is missing or wrong.

        All digests are compared in constant time, so that the duration says nothing about any key.
        """
        if not self._digests:
            return "anonymous"
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:16] if any(matches) and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class AdmissionMiddleware:
    """ASGI middleware that admits or rejects requests and turns exceptions into error responses.

    It never logs a text of a request, not even when something breaks.

    Args:
        app: The application behind it.
        api_keys: Accepted keys.
        limits: Limits on body size, body duration and rates.
        metrics: Counts every request.
        local_only: Without API keys, accept only requests whose Host header names this machine.
    """

    def __init__(self, app: ASGIApp, *, api_keys: APIKeys, limits: Limits, metrics: Metrics, local_only: bool) -> None:
        self._app, self._api_keys, self._limits, self._metrics = app, api_keys, limits, metrics
        self._rate_limiter = RateLimiter(limits)
        # DNS rebinding: a foreign page whose name resolves to this machine could send requests from the user's
        # browser; its Host header gives it away
        self._local_only = local_only and not api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, sender = time.perf_counter(), _ResponseSender(send)
        try:
            scope.setdefault("state", {})["charge_tokens"] = self._admit(scope)
            await self._app(scope, await self._receive_body(receive), sender)
        except Exception as error:
            api_error = api_error_of(error)
            if api_error.status >= 500 and api_error is not error:
                _log_server_fault(error)
            if not sender.status:
                await api_error.response()(scope, receive, sender)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self._metrics.observe_request(route, sender.status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> Callable[[int], None]:
        """Check host, API key and request rate; return the function that charges tokens to the key."""
        headers, path = Headers(scope=scope), scope["path"]
        if self._local_only and (host := _host_name(headers.get("host", ""))) and host not in _LOCAL_HOSTS:
            message = "This server accepts requests from this machine only, or with an API key."
            raise APIError(403, message, code="wrong_host")
        if path in _PUBLIC_PATHS or path.startswith("/page/"):
            return lambda _: None
        client_id = self._api_keys.client_id(headers.get("authorization", ""))
        if client_id is None:
            raise APIError(
                401, "The API key is missing or wrong; send `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        self._rate_limiter.take(client_id, "requests", 1)
        return lambda count: self._rate_limiter.take(client_id, "tokens", count)

    async def _receive_body(self, receive: Receive) -> Receive:
        """Receive the whole body within its limits; return a `receive` that replays it, then passes messages on.

        The messages after the body are how routes learn that the client disconnected.
        """
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                body = await self._read_body(receive)
        except TimeoutError:
            raise APIError(408, "The body did not arrive in time.", code="timeout") from None
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    async def _read_body(self, receive: Receive) -> bytes:
        chunks, size, max_bytes = list[bytes](), 0, self._limits.max_body_bytes
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise APIError(499, "The client disconnected.", code="client_gone")
            size += len(message.get("body", b""))
            if size <= max_bytes:
                chunks.append(message.get("body", b""))
            else:
                chunks.clear()
            more = message.get("more_body", False) and size <= _DRAIN_FACTOR * max_bytes
        if size > max_bytes:
            raise APIError(413, f"The body is larger than {max_bytes} bytes; split the request.", code="body_too_large")
        return b"".join(chunks)


class _ResponseSender:
    """Sends a response with the headers that every response has, and records its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _RESPONSE_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def _host_name(host_header: str) -> str:
    """Return the name in a Host header, without the port."""
    name = host_header.rsplit(":", 1)[0] if host_header.rsplit(":", 1)[-1].isdecimal() else host_header
    return name.lower()


def _log_server_fault(error: Exception) -> None:
    """Log the class and the traceback of an exception; its message may contain a text of the request."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s while answering a request:\n%s", type(error).__name__, frames)
