"""Clients of servers, as encoders: OpenAI's API and that of TEI; batches, retries, a rate limit; no key is stored."""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation.text_encoder import FloatArray, TextEncoder
from decoder2vec.storage import parse_json

KEY_VARIABLES = ("D2V_API_KEY", "OPENAI_API_KEY")
"""Environment variables with the key; the first that is set is used."""

_PARALLEL_REQUESTS = 4
_ATTEMPTS = 7
"""Attempts at a request before it fails: about a minute of waiting."""
_MAX_WAIT = 120.0
"""Longest wait in seconds, also where a server asks for more."""
_TIMEOUT = 120.0
_RETRIED_STATUSES = {408, 409, 429, 500, 502, 503, 504, 529}


class _ServerEncoder(TextEncoder):
    """A model behind an address: `_embed_batch` says what is asked and how the reply is read."""

    texts_per_request: int

    def __init__(self, url: str, endpoint: str, requests_per_minute: int) -> None:
        if urlsplit(url).username or urlsplit(url).password:
            host = urlsplit(url).hostname
            raise InputError(f"The address of {host} contains a password; set {KEY_VARIABLES[0]} instead.")
        if requests_per_minute < 0:
            raise InputError(f"requests_per_minute must be 0 or more, not {requests_per_minute}.")
        self.url, self._endpoint = url, endpoint
        self._rate = _RateLimit(requests_per_minute)

    @cached_property
    def dim(self) -> int:  # type: ignore[override]
        """Number of dimensions of a vector, which takes a request."""
        return int(self.embed(["dimension"]).shape[1])

    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] vectors, several requests at a time."""
        size = self.texts_per_request
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            futures = [pool.submit(self._embed_batch, batch) for batch in batches]
            try:
                return np.concatenate([future.result() for future in futures])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    @abstractmethod
    def _embed_batch(self, texts: list[str]) -> FloatArray:
        """[texts, dim] vectors of the texts of one request."""

    def _check_count(self, vectors: FloatArray, texts: list[str]) -> FloatArray:
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EncoderError(f"{self.url} returned {len(vectors)} vectors for {len(texts)} texts.")
        return vectors

    def _post(self, body: dict[str, Any]) -> Any:
        """The JSON reply to a request; it is sent again if that may help."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._endpoint, json.dumps(body).encode(), headers)
        key = next((os.environ[name].strip() for name in KEY_VARIABLES if os.environ.get(name)), "")
        if key:  # unredirected: another server that this one points to must not get it
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        failure = ""
        for attempt in range(_ATTEMPTS):
            self._rate.wait()
            asked_wait = None
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                    return parse_json(response.read())
            except urllib.error.HTTPError as error:
                failure = f"{error.code} {_error_message(error)}".replace(key or "\0", "...")
                if error.code not in _RETRIED_STATUSES:
                    hint = f"; set {' or '.join(KEY_VARIABLES)}" if error.code == 401 and not key else ""
                    raise EncoderError(f"{self.url} refused the request: {failure}{hint}.") from None
                asked_wait = _retry_after(error.headers.get("Retry-After", ""))
            except (OSError, http.client.HTTPException) as error:  # not reached, timed out, or disconnected
                failure = str(getattr(error, "reason", error)) or type(error).__name__
            except ValueError:
                raise EncoderError(f"{self.url} does not answer with JSON; give the address up to /v1.") from None
            if attempt + 1 < _ATTEMPTS:
                time.sleep(asked_wait if asked_wait is not None else _back_off(attempt))
        raise EncoderError(f"{self.url} failed {_ATTEMPTS} times in a row, last with: {failure}.")


class OpenAIEncoder(_ServerEncoder):
    """A model behind `POST /v1/embeddings`.

    Args:
        url: Address and model, such as "https://host/v1#model".
        requests_per_minute: Requests are spread so that there are no more than this; 0: no limit.

    Raises:
        InputError: The address lacks the model, or contains a password.
    """

    kind = "openai"
    texts_per_request = 64

    def __init__(self, url: str, requests_per_minute: int = 0) -> None:
        parts = urlsplit(url)
        path = parts.path.rstrip("/").removesuffix("/embeddings")
        address = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        endpoint = urlunsplit((parts.scheme, parts.netloc, f"{path}/embeddings", parts.query, ""))
        super().__init__(address, endpoint, requests_per_minute)
        if not parts.fragment or not parts.hostname:
            raise InputError(f"Name the model of {url} after a #, for example https://host/v1#model.")
        self.model = parts.fragment
        self.fingerprint = fingerprint("openai", self.url, self.model)

    def _embed_batch(self, texts: list[str]) -> FloatArray:
        reply = self._post({"model": self.model, "input": texts})
        try:
            entries = sorted(reply["data"], key=lambda entry: entry["index"])
            vectors = np.array([entry["embedding"] for entry in entries], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise EncoderError(f"{self.url} does not answer like OpenAI's /v1/embeddings ({error!r}).") from None
        return self._check_count(vectors, texts)

    def __repr__(self) -> str:
        return f"{self.model} at {self.url}"


class TEIEncoder(_ServerEncoder):
    """The model of a server of text-embeddings-inference, behind `POST /embed`.

    Args:
        url: Its address, such as "http://host:8080/embed".
        requests_per_minute: Requests are spread so that there are no more than this; 0: no limit.
    """

    kind = "tei"
    texts_per_request = 32
    """What TEI accepts by default."""

    def __init__(self, url: str, requests_per_minute: int = 0) -> None:
        super().__init__(url, url, requests_per_minute)
        self.fingerprint = fingerprint("tei", url)

    def _embed_batch(self, texts: list[str]) -> FloatArray:
        reply = self._post({"inputs": texts, "truncate": True})
        try:
            vectors = np.array(reply, np.float32)
        except (TypeError, ValueError) as error:
            raise EncoderError(f"{self.url} does not answer like TEI's /embed ({error!r}).") from None
        return self._check_count(vectors, texts)

    def __repr__(self) -> str:
        return f"TEI at {self.url}"


class _RateLimit:
    """Spreads calls of several threads evenly over time."""

    def __init__(self, per_minute: int) -> None:
        self._interval = 60 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Sleep until the next call is allowed."""
        with self._lock:
            start = max(time.monotonic(), self._next)
            self._next = start + self._interval
        if (delay := start - time.monotonic()) > 0:
            time.sleep(delay)


def _back_off(attempt: int) -> float:
    """Seconds to wait after a failed attempt: 1, 2, 4, ..., shortened at random so that clients do not keep step."""
    return float(min(_MAX_WAIT, 2.0**attempt) * random.uniform(0.5, 1))


def _retry_after(value: str) -> float | None:
    """Seconds that the server asks to wait, given as a number or a date; None if it does not say."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(_MAX_WAIT, max(0.0, seconds))


def _error_message(error: urllib.error.HTTPError) -> str:
    """The server's message, or the reason phrase of the status."""
    try:
        reason = parse_json(error.read())["error"]
        return str(reason if isinstance(reason, str) else reason["message"]).rstrip(".")
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
