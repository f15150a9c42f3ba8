"""What an index stores (chunks, their vectors, the embedding space of these) and the interface of its stores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError, StorageError, UnsupportedError
from decoder2vec.maths.similarity import SIMILARITIES, check_finite

Embeddings = NDArray[np.float32]
"""[texts, dim] vectors."""

MetadataValue = str | int | float | bool | None
MetadataFilter = Mapping[str, MetadataValue | Sequence[MetadataValue]]
"""Metadata key -> its required value, or several values of which one is required. All keys must match."""

_PROBE_TEXT = "The ferry to the islands leaves at seven, unless the wind is too strong."
_MIN_PROBE_COSINE = 0.999
"""The same weights give closer vectors than this on any machine; the vectors of another model are far away."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a document. The fields have the names of the columns in the stores."""

    document: str
    """Id of the document."""
    number: int
    """Position in the document, from 0 to `total` - 1."""
    total: int
    """Number of chunks of the document."""
    text: str
    metadata: dict[str, Any]
    digest: str
    """Hash of the whole document, by which an unchanged document is recognised."""

    @property
    def key(self) -> str:
        """Unique key of the chunk; `document_id_of` is the inverse."""
        return f"{self.document}#{self.number}"

    def tags(self) -> list[str]:
        """Return `key=value` for every metadata value, and for every member of a list."""
        return [
            metadata_tag(name, member)
            for name, value in self.metadata.items()
            for member in (value if isinstance(value, list) else [value])
        ]


@dataclass(frozen=True)
class StoreStats:
    """What a store says about itself."""

    size: int
    """Bytes on disk."""
    ann: str
    """Kind of the approximate index that is built, or "none"."""
    unindexed: int
    """Chunks that are not yet in it, and are compared one by one."""
    deleted: int
    """Rows of deleted chunks that still take space."""


class ChunkStore(Protocol):
    """Storage of chunks and vectors. Every change is atomic: complete or absent, even if the process is killed."""

    local_folder: Path
    """Folder on this machine for the encoder's description, the BM25 index and a learned reranker."""
    generation: str
    """Which table of chunks is read and written: the one that the header named when the index was opened. Every move to
    another encoder writes a new table; a process that has the old one open goes on with it."""

    def header(self) -> dict[str, Any] | None:
        """Return what `write_header` wrote, or None if there is no index."""

    def check_new(self) -> None:
        """Raise InputError if there is an index already, or anything that `create` must not replace."""

    def create(self, index_id: str, dim: int) -> None:
        """Create empty storage for vectors of width `dim`, replacing the remains of an unfinished attempt."""

    def is_created(self) -> bool:
        """Return whether there is the storage that `create` makes."""

    def write_header(self, header: dict[str, Any]) -> None:
        """Write the header, which turns the storage that `create` made into an index."""

    def revision(self) -> str:
        """Return an identifier that changes with every change of the stored chunks."""

    def count_chunks(self) -> int:
        """Return the number of chunks."""

    def document_digests(self) -> dict[str, str]:
        """Return document id -> digest for all documents."""

    def write_chunks(self, chunks: Sequence[Chunk], vectors: Embeddings, replace: bool) -> None:
        """Store the chunks of whole documents in one step; `replace` also removes their earlier chunks in that step."""

    def delete_documents(self, ids: Sequence[str]) -> None:
        """Remove whole documents in one step."""

    def read_vectors(self, documents: Sequence[str] | None = None) -> tuple[list[str], Embeddings]:
        """Return the keys and vectors of all chunks, or of those of some documents."""

    def read_texts(self) -> tuple[list[str], list[str]]:
        """Return the keys and texts of all chunks."""

    def matching_keys(self, filter: MetadataFilter) -> set[str]:
        """Return the keys of the chunks that match a filter."""

    def read_chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return key -> chunk for those of the keys that exist."""

    def ann_kinds(self, dim: int) -> tuple[str, ...]:
        """Return the kinds of approximate index that there are for vectors of this width, the default first."""

    def nearest(
        self, vector: Embeddings, count: int, similarity: str, filter: MetadataFilter | None, *, exact: bool
    ) -> tuple[list[str], Embeddings]:
        """Return keys and vectors of the `count` nearest chunks: by the approximate index, or of all chunks if `exact`.

        Chunks that were added since the index was built are compared exactly, too.
        """

    def verify_files(self) -> None:
        """Raise StorageError if a file is not as it was written."""

    def optimise(self, ann: str, similarity: str, *, rebuild: bool = False) -> None:
        """Compact after many changes, and bring the approximate index up to date.

        Args:
            ann: Kind of the approximate index, or "none", which removes it.
            similarity: What it is for.
            rebuild: Build it anew, for the vectors that are stored now, even if there is one of this kind.
        """

    def stats(self) -> StoreStats:
        """Return size on disk, kind of the approximate index, and what it does not hold."""

    def close(self) -> None:
        """Release open files and connections."""

    def write_lock(self) -> AbstractContextManager[None]:
        """Lock for the one process that changes the store; raises StorageError while another process holds it."""

    def migration_lock(self) -> AbstractContextManager[None]:
        """Lock for the one process that moves the index to another encoder, while others may change it."""

    def remove_other_generations(self, *kept: str) -> None:
        """Remove what is stored of all generations but some; what another process has open stays."""


def generation_suffix(generation: str) -> str:
    """Return what ends the names of the files of a generation; nothing for the first."""
    return f"-{generation}" if generation else ""


def encoder_folder(store: ChunkStore) -> Path:
    """Return the folder for the description of the encoder whose vectors a store holds."""
    return store.local_folder / f"encoder{generation_suffix(store.generation)}"


def keep_encoder(store: ChunkStore, encoder: Any) -> None:
    """Save an `Encoder` beside the vectors of a store, in no more bits than it needs; others cannot be saved."""
    from decoder2vec.adapters.saving import exact_dtype
    from decoder2vec.encoder import Encoder

    if isinstance(encoder, Encoder):
        encoder.save(encoder_folder(store), lora_dtype=exact_dtype(encoder.backbone.adapter, encoder.backbone))


def check_generation(store: ChunkStore, location: str | Path) -> None:
    """Raise StorageError if the index has been moved to another encoder since it was opened."""
    header = store.header()
    if header is not None and header.get("generation", "") != store.generation:
        raise StorageError(f"{location} was moved to another encoder meanwhile; open it again.")


def without_password(location: str | Path) -> str:
    """Return the location of an index as it may be printed."""
    hidden = re.sub(r"(//[^/:@]*):[^/@]*@", r"\1:***@", str(location))
    return re.sub(r"([?&]password=)[^&#]*", r"\1***", hidden) if "://" in hidden else hidden


def document_id_of(chunk_key: str) -> str:
    """Return the id of the document that a chunk belongs to."""
    return chunk_key.rpartition("#")[0]


def metadata_tag(name: str, value: Any) -> str:
    """Return the string by which filters find a metadata value."""
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def required_tags(filter: MetadataFilter) -> list[list[str]]:
    """Return one list of tags per key of the filter; a chunk must have at least one tag of each list."""
    return [
        [metadata_tag(name, value) for value in ([values] if isinstance(values, MetadataValue) else values)]
        for name, values in filter.items()
    ]


@dataclass(frozen=True)
class EmbeddingSpace:
    """Identity of an embedding space: vectors are comparable only within one."""

    dim: int
    similarity: str
    fingerprint: str = ""
    """Fingerprint of the encoder; empty if it has none."""
    probe: tuple[float, ...] = ()
    """Vector of a fixed sentence, kept only for encoders without a fingerprint."""

    @classmethod
    def of(cls, encoder: Any) -> EmbeddingSpace:
        """Return the space of anything with `encode`."""
        similarity = getattr(encoder, "similarity_fn_name", None) or "cosine"
        similarity = str(getattr(similarity, "value", similarity))
        if similarity not in SIMILARITIES:
            raise UnsupportedError(f"An index supports the similarities {', '.join(SIMILARITIES)}, not {similarity!r}.")
        fingerprint = str(getattr(encoder, "fingerprint", "") or "")
        if fingerprint and isinstance(getattr(encoder, "dim", None), int):
            return cls(encoder.dim, similarity, fingerprint)
        probe = np.asarray(encoder.encode([_PROBE_TEXT]), np.float32)[0]
        return cls(len(probe), similarity, fingerprint, () if fingerprint else tuple(map(float, probe)))

    def check_encoder(self, encoder: Any, location: str) -> None:
        """Raise InputError if the encoder embeds into another space than the index at `location`."""
        other = EmbeddingSpace.of(encoder)
        if self.matches(other):
            return
        raise InputError(
            f"The vectors in {location} are from another embedding space ({self}; this encoder: {other}); "
            "use the encoder that the index was created with, or create a new index."
        )

    def matches(self, other: EmbeddingSpace) -> bool:
        """Return whether vectors of both are comparable."""
        return self.dim == other.dim and self.fingerprint == other.fingerprint and self._probe_matches(other)

    def _probe_matches(self, other: EmbeddingSpace) -> bool:
        a, b = np.array(self.probe), np.array(other.probe)
        return not self.probe or float(a @ b) >= _MIN_PROBE_COSINE * float(np.linalg.norm(a) * np.linalg.norm(b))

    def __str__(self) -> str:
        return f"{self.fingerprint or 'no fingerprint'}, {self.dim} dimensions"


def resolve_encoder(encoder: Any, **options: Any) -> Any:
    """Return an object with `encode`.

    Args:
        encoder: Anything with `encode`, returned unchanged; or a model name or encoder folder, which is loaded.
        options: Options of `Encoder.from_pretrained`, for a name or folder.
    """
    if isinstance(encoder, str | Path):
        from decoder2vec.encoder import Encoder

        return Encoder.from_pretrained(encoder, **options)
    if not callable(getattr(encoder, "encode", None)):
        raise InputError(f"A {type(encoder).__name__} has no `encode`; pass an encoder, a model name or a folder.")
    return encoder


def encode_texts(encoder: Any, texts: list[str], role: str) -> Embeddings:
    """Return [texts, dim] vectors, with `encode_query` or `encode_document` (by `role`) where the encoder has it."""
    encode = getattr(encoder, f"encode_{role}", None) or encoder.encode
    vectors = np.asarray(encode(texts), np.float32)
    check_finite(vectors, texts)
    return vectors
