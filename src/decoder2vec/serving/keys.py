"""Who may ask: API keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from decoder2vec.errors import InputError


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
