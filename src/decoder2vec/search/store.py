"""What an index keeps its chunks and vectors in: one interface, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import SIMILARITIES

Vectors = NDArray[np.float32]
Filter = Mapping[str, str | Sequence[str]]
"""What the metadata must say: every key has the value, or one of the values."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a document."""

    document: str
    number: int
    total: int
    """How many chunks the document has: `number` counts from 0 to one less."""
    text: str
    metadata: dict[str, Any]
    digest: str
    """Of the whole document, so that one that has not changed is known."""

    @property
    def key(self) -> str:
        """Names the chunk; `document_of` is the inverse."""
        return f"{self.document}#{self.number}"

    def tags(self) -> list[str]:
        """`key=value` of everything the metadata say; a list has a tag for each member."""
        found = []
        for name, value in self.metadata.items():
            members = value if isinstance(value, list) else [value]
            found += [tag(name, member) for member in members]
        return found


class Store(Protocol):
    """Chunks with their vectors. A change is made as a whole or not at all, whenever the process ends."""

    beside: Path
    """A folder for what can be made again from the store."""

    def header(self) -> dict[str, Any] | None:
        """What `write_header` wrote; None where there is no index."""

    def create(self, dim: int) -> None:
        """Make room for chunks with vectors of that width, in place of what an unfinished attempt left behind."""

    def write_header(self, header: dict[str, Any]) -> None:
        """Only with it, what `create` made is an index."""

    def state(self) -> str:
        """Changes whenever what is stored does."""

    def count(self) -> int:
        """How many chunks there are."""

    def documents(self) -> dict[str, str]:
        """The digest of every document."""

    def put(self, chunks: Sequence[Chunk], vectors: Vectors, replace: bool) -> None:
        """Store whole documents in one step; with `replace` what was stored of them before goes in the same step."""

    def delete(self, documents: Sequence[str]) -> None:
        """Remove whole documents in one step."""

    def vectors(self) -> tuple[list[str], Vectors]:
        """Keys and vectors of all chunks."""

    def texts(self) -> tuple[list[str], list[str]]:
        """Keys and texts of all chunks."""

    def keys(self, where: Filter) -> set[str]:
        """Keys of the chunks that a filter lets through."""

    def chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Chunks by key."""

    def nearest(self, vector: Vectors, count: int, similarity: str, where: Filter | None) -> tuple[list[str], Vectors]:
        """Keys and vectors of about the nearest chunks: for more than can be compared one by one."""

    def tidy(self, approximate: str | None) -> None:
        """Put in order after many changes; `approximate` names the similarity that `nearest` is to be fast for."""

    def close(self) -> None:
        """Let go of what is open."""

    def writing(self) -> AbstractContextManager[None]:
        """Held by the one process that changes the store; a second one is refused."""


def document_of(key: str) -> str:
    """The document that a chunk is of."""
    return key.rpartition("#")[0]


def tag(name: str, value: Any) -> str:
    """A word for one thing that metadata say."""
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def wanted_tags(where: Filter) -> list[list[str]]:
    """For each key of a filter the tags of which a chunk must have one."""
    return [
        [tag(name, value) for value in ([values] if isinstance(values, str) else values)]
        for name, values in where.items()
    ]


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
