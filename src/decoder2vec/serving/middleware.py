"""Who may ask: API keys, compared in constant time."""

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
from decoder2vec.serving.api_errors import APIError, problem_of
from decoder2vec.serving.limits import Limits, Rates
from decoder2vec.serving.metrics import Metrics


class Keys:
    """The keys that are let in; without any, everybody is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = [key.strip() for key in keys]
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in given):
            raise InputError("An API key is one word of plain letters, digits and signs.")
        self._digests = [_digest(key) for key in given]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holder(self, authorization: str) -> str | None:
        """Names the holder of the key in an Authorization header; None where the key is wrong or missing.

        Digests are compared, all of them and each to its end: how long it takes says nothing about any key.
        """
        if not self._digests:
            return "anybody"
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:16] if any(matches) and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


log = logging.getLogger(__name__)

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_OPEN = ("/", "/health")
"""Need no key; nor does the page, which is nothing but a form."""
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_DRAINED = 8
"""A body up to so many times the limit is received and thrown away, since most clients hear an answer only then."""


class Gate:
    """ASGI middleware. It writes no text of a request into a log, not even when something breaks."""

    def __init__(self, app: ASGIApp, *, keys: Keys, limits: Limits, metrics: Metrics, local: bool) -> None:
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._rates = Rates(limits)
        # a foreign page whose name leads to this machine could ask in the user's browser: the Host gives it away
        self._local = local and not keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, sent = time.perf_counter(), _Sent(send)
        try:
            scope.setdefault("state", {})["take_tokens"] = self._admit(scope)
            await self._app(scope, await self._body(scope, receive), sent)
        except Exception as error:
            if not isinstance(error, APIError):
                _log_without_texts(error)
            if not sent.status:
                await problem_of(error).response()(scope, receive, sent)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self._metrics.answered(route, sent.status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> Callable[[int], None]:
        """Who asks? What is given back uses up tokens of that key."""
        headers, path = Headers(scope=scope), scope["path"]
        if self._local and (host := _host(headers.get("host", ""))) and host not in _LOCAL:
            raise APIError(403, "This server answers on this machine only, or with an API key.", code="wrong_host")
        if path in _OPEN or path.startswith("/page/"):
            return lambda _: None
        holder = self._keys.holder(headers.get("authorization", ""))
        if holder is None:
            raise APIError(
                401, "The API key is missing or wrong; send `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        self._rates.take(holder, "requests", 1)
        return lambda count: self._rates.take(holder, "tokens", count)

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body, within its size and time; then the client's own messages, such as that it has gone."""
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._receive_all(receive)
        except TimeoutError:
            raise APIError(408, "The body did not arrive in time.", code="timeout") from None
        first = True

        async def replay() -> Message:
            nonlocal first
            if not first:
                return await receive()
            first = False
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    async def _receive_all(self, receive: Receive) -> bytes:
        parts, size, most = list[bytes](), 0, self._limits.body_bytes
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise APIError(499, "The client has hung up.", code="client_gone")
            size += len(message.get("body", b""))
            if size <= most:
                parts.append(message.get("body", b""))
            else:
                parts.clear()
            more = message.get("more_body", False) and size <= _DRAINED * most
        if size > most:
            raise APIError(413, f"The body is larger than {most} bytes; send it in parts.", code="body_too_large")
        return b"".join(parts)


class _Sent:
    """Passes an answer on, with the headers that every answer has, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    name = header.rsplit(":", 1)[0] if header.rsplit(":", 1)[-1].isdecimal() else header
    return name.lower()


def _log_without_texts(error: Exception) -> None:
    """Where it broke and what kind of error it was; the message of an error may hold what was asked."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s while answering a request:\n%s", type(error).__name__, where)
