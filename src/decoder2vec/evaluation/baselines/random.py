"""Chance: random vectors, the same for the same text. What an encoder must beat to know anything but equality."""

from __future__ import annotations

import hashlib

import numpy as np

from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines.baseline import Baseline, Vectors
from decoder2vec.spec import fingerprint

DEFAULT_DIM = 256


class RandomVectors(Baseline):
    """Normal numbers, seeded by the hash of the text: on every machine and in every order the same."""

    kind = "random"

    def __init__(self, dim: int = DEFAULT_DIM) -> None:
        if dim < 1:
            raise InputError(f"Random vectors have 1 number or more, not {dim}; say random:256.")
        self.dim = dim
        self.fingerprint = fingerprint("random", dim)

    def vectors(self, texts: list[str]) -> Vectors:
        """A vector for each text."""
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> Vectors:
        seed = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest(), "big")
        return np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
