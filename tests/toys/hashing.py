"""Workers of Ray that hash texts in place of an encoder, so that they start without torch; the rest is the same."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np

from decoder2vec.bulk import ray_engine


class HashEncoder:
    """Gives each text a vector of its hash."""

    fingerprint, dim, prompts = "hashes", 8, {}

    def __init__(self):
        self.stats = SimpleNamespace(tokens=0, overlong=0)
        self.backbone, self.spec = SimpleNamespace(dtype_name="float32"), SimpleNamespace(on_overflow="truncate")

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def encode(self, texts):
        self.stats.tokens += len(texts)
        digests = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
        return (np.frombuffer(digests, np.uint32).reshape(len(texts), self.dim) / 2**32).astype(np.float32)


class HashWorker(ray_engine._PartWorker):
    """A worker with it."""

    def __init__(self, *args):
        super().__init__(*args)
        self._embed.encode = self._encoder.encode

    def load_encoder(self, name, device, dtype):
        return HashEncoder()


class NoTokens:
    """Tokeniser settings that leave the texts to the worker."""

    @classmethod
    def of(cls, encoder, prompt):
        return cls()

    def tokenise(self, texts):
        return []
