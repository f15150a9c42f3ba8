"""Which embedding space the vectors of an index are from, and whether an encoder is of the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import SIMILARITIES
from decoder2vec.search.store import Vectors

_PROBE = "The ferry to the islands leaves at seven, unless the wind is too strong."
_SAME = 0.999
"""The same weights on another machine give vectors that are closer than this, another model's are far away."""


@dataclass(frozen=True)
class Space:
    """An embedding space: what tells its vectors from others."""

    dim: int
    similarity: str
    fingerprint: str = ""
    """The encoder's own; empty where it has none."""
    probe: tuple[float, ...] = ()
    """Then the vector of one sentence, which every encoder of the space gives again."""

    @classmethod
    def of(cls, encoder: Any) -> Space:
        """The space of anything with `encode`."""
        similarity = getattr(encoder, "similarity_fn_name", None) or "cosine"
        similarity = str(getattr(similarity, "value", similarity))
        if similarity not in SIMILARITIES:
            raise InputError(f"An index compares by {', '.join(SIMILARITIES)}, not by {similarity!r}.")
        fingerprint = str(getattr(encoder, "fingerprint", "") or "")
        if fingerprint and isinstance(getattr(encoder, "dim", None), int):
            return cls(encoder.dim, similarity, fingerprint)
        probe = np.asarray(encoder.encode([_PROBE]), np.float32)[0]
        return cls(len(probe), similarity, fingerprint, () if fingerprint else tuple(map(float, probe)))

    def refuse_other(self, encoder: Any, place: str) -> None:
        """An encoder of another space is an error that says so."""
        other = Space.of(encoder)
        if self.dim == other.dim and self.fingerprint == other.fingerprint and self._near(other):
            return
        raise InputError(
            f"The vectors of {place} are from another embedding space ({self}, this encoder: {other}); "
            "use the encoder it was made with, or make a new index."
        )

    def _near(self, other: Space) -> bool:
        a, b = np.array(self.probe), np.array(other.probe)
        return not self.probe or float(a @ b) >= _SAME * float(np.linalg.norm(a) * np.linalg.norm(b))

    def __str__(self) -> str:
        return f"{self.fingerprint or 'no fingerprint'}, {self.dim} numbers"


def vectors_of(encoder: Any, texts: list[str], role: str) -> Vectors:
    """[n, dim] vectors of texts as queries or documents, where the encoder tells them apart."""
    encode = getattr(encoder, f"encode_{role}", None) or encoder.encode
    vectors = np.asarray(encode(texts), np.float32)
    if not np.isfinite(vectors).all():
        raise InputError("The encoder gave numbers that are not finite; load it in float32.")
    return vectors
