"""Compare the search of an index before and after its migration to another encoder, on a sample of its texts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.encoder_folder import is_encoder_folder
from decoder2vec.errors import InputError
from decoder2vec.maths.bootstrap import mean_scorer, resample
from decoder2vec.maths.space_map import NEIGHBOURS, SpaceMap, nearest, neighbour_recall
from decoder2vec.search.chunks import Chunking, encode_together
from decoder2vec.search.index import IndexHeader
from decoder2vec.search.ranking import MAX_EXACT_BYTES, DenseSearch
from decoder2vec.search.store import (
    Chunk,
    ChunkStore,
    Embeddings,
    EmbeddingSpace,
    document_id_of,
    encode_texts,
    encoder_folder,
    resolve_encoder,
)
from decoder2vec.search.tuning import Qrels

SHOWN_QUERIES = 10
MAX_MEASURED_QUERIES = 500
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class MigrationJob:
    """The source index, the new encoder and the settings of one migration."""

    location: str | Path
    display_location: str
    """The location without a password, for messages."""
    source: ChunkStore
    header: IndexHeader
    encoder: Any
    space: EmbeddingSpace
    chunking: Chunking
    """How the new encoder reads chunks."""
    queries: Mapping[str, str]
    qrels: Qrels
    notify: Callable[[str], object]

    def encode(self, texts: Sequence[str], role: str = "document") -> Embeddings:
        """Return vectors of the new encoder."""
        return encode_texts(self.encoder, list(texts), role)

    def encode_chunks(self, chunks: Sequence[Chunk]) -> Embeddings:
        """Return vectors of the new encoder for all chunks of some documents."""
        if self.chunking.late:
            return encode_together(self.encoder, self.chunking, chunks)
        return self.encode([chunk.text for chunk in chunks])

    def encode_keys(self, keys: Sequence[str], texts: Sequence[str]) -> Embeddings:
        """Return vectors of the new encoder for some chunks of the index, given their texts."""
        if not self.chunking.late:
            return self.encode(texts)
        stored, _ = self.source.read_vectors(sorted(set(map(document_id_of, keys))))
        return encode_together(self.encoder, self.chunking, list(self.source.read_chunks(stored).values()), keys)


@dataclass(frozen=True)
class MapQuality:
    """What a map keeps of the new encoder's search, measured on texts that it was not learned from."""

    recall: float
    """Share of the ten nearest texts by true vectors that are among the ten nearest by mapped vectors. With judged
    queries: recall@10 of mapped vectors among all texts, as a share of that of true vectors among the texts that have
    them. These are fewer, so that they are easier to search: the share is at least this."""
    low: float
    high: float
    """95 % bootstrap interval over the queries."""
    old_recall: float | None
    """The same for the old encoder, whose vectors need no map; None where its vectors of the queries are not known."""
    is_judged: bool
    """Whether recall is that of relevant documents."""
    queries: int
    texts: int
    """Number of texts that were searched by mapped vectors."""

    def __str__(self) -> str:
        of_what = "recall@10, or more" if self.is_judged else "ten nearest texts"
        old = "" if self.old_recall is None else f"; the old vectors have {100 * self.old_recall:.1f} %"
        return (
            f"{100 * self.recall:.1f} % of the new encoder's {of_what} (95 % interval {100 * self.low:.1f} to "
            f"{100 * self.high:.1f}), with {self.queries} queries among {self.texts} texts{old}"
        )


@dataclass(frozen=True)
class FoundText:
    """A text that a query finds."""

    id: str
    """Of its document."""
    text: str
    """Its beginning."""


@dataclass(frozen=True)
class QueryChange:
    """The first ten texts for a query, before and after."""

    query: str
    before: tuple[FoundText, ...] | None
    """None if the old encoder's vector of the query is not known."""
    after: tuple[FoundText, ...]
    embedded_again: tuple[FoundText, ...] | None = None
    """For a map: what the new encoder's own vectors find."""

    @property
    def kept(self) -> float | None:
        """Share of the texts before that are among those after."""
        return None if self.before is None else _shared(self.before, self.after)

    @property
    def kept_of_true(self) -> float | None:
        """For a map: share of the texts that the new encoder's own vectors find."""
        return None if self.embedded_again is None else _shared(self.embedded_again, self.after)


def old_vectors(job: MigrationJob, texts: list[str]) -> Embeddings | None:
    """Return the old encoder's vectors of queries, if the index knows its encoder."""
    folder = encoder_folder(job.source)
    return encode_texts(resolve_encoder(folder), texts, "query") if is_encoder_folder(folder) else None


@dataclass(frozen=True)
class Sample:
    """Some chunks of the index, with their old vectors and perhaps their true new ones."""

    keys: list[str]
    texts: list[str]
    old: Embeddings
    new: Embeddings

    @classmethod
    def draw(cls, job: MigrationJob, text_of: Mapping[str, str], count: int | None = None) -> Sample:
        """Draw chunks at random, the same in every run.

        Args:
            job: Has the index.
            text_of: Texts of chunks by their keys.
            count: Number of chunks; None takes all.
        """
        order = sorted(text_of)
        np.random.default_rng(0).shuffle(order)
        keys = order[:count]
        documents = sorted({document_id_of(key) for key in keys})
        vector_of = dict(zip(*job.source.read_vectors(documents), strict=True)) if documents else {}
        keys = [key for key in keys if key in vector_of]  # another process may have deleted one since
        old = np.array([vector_of[key] for key in keys], np.float32).reshape(len(keys), job.header.dim)
        return cls(keys, [text_of[key] for key in keys], old, np.empty((0, job.space.dim), np.float32))

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, count: int) -> Sample:
        """Return the first of these chunks."""
        return Sample(self.keys[:count], self.texts[:count], self.old[:count], self.new[:count])

    def joined(self, other: Sample) -> Sample:
        """Return these chunks and others."""
        old, new = np.concatenate([self.old, other.old]), np.concatenate([self.new, other.new])
        return Sample(self.keys + other.keys, self.texts + other.texts, old, new)

    def with_true_vectors(self, job: MigrationJob) -> Sample:
        """Return the same chunks, embedded by the new encoder."""
        return replace(self, new=job.encode_keys(self.keys, self.texts)) if self.texts else self


@dataclass(frozen=True)
class SampleSearch:
    """What queries find in a sample: the indices of the nearest chunks, by each kind of vectors."""

    sample: Sample
    ids: list[str]
    """Of the queries; empty where they are the first chunks of the sample."""
    queries: list[str]
    query_vectors: Embeddings
    old_query_vectors: Embeddings | None
    old: NDArray[np.intp] | None
    reembedded: NDArray[np.intp]
    mapped: NDArray[np.intp] | None
    """By vectors of the old encoder, of the new encoder, and of the new one for queries with mapped ones for chunks."""

    @classmethod
    def of(cls, job: MigrationJob, sample: Sample, learned: SpaceMap | None) -> SampleSearch:
        """Search a sample with the given queries, or with its own texts."""
        old_queries: Embeddings | None
        stored = {document_id_of(key) for key in sample.keys}
        ids = [id for id in job.queries if not job.qrels or _relevant(job, id) & stored][:MAX_MEASURED_QUERIES]
        if job.qrels and not ids:
            raise InputError(
                f"No query has a relevant document in {job.display_location}; check the ids of the judgements."
            )
        if ids:
            queries = [job.queries[id] for id in ids]
            row_of = {document_id_of(key): row for row, key in enumerate(sample.keys)}
            # a query that is a document, too, does not look for itself, as in `Index.tune`
            own_rows = np.array([row_of.get(id, -1) if id not in job.qrels.get(id, {}) else -1 for id in ids], np.intp)
            old_queries = old_vectors(job, queries)
        else:
            queries = sample.texts[:MAX_MEASURED_QUERIES]
            own_rows, old_queries = np.arange(len(queries)), sample.old[: len(queries)]
        vectors, similarity = job.encode(queries, "query"), job.space.similarity
        return cls(
            sample,
            ids,
            queries,
            vectors,
            old_queries,
            None if old_queries is None else nearest(old_queries, sample.old, job.header.space.similarity, own_rows),
            nearest(vectors, sample.new, similarity, own_rows),
            None if learned is None else nearest(vectors, learned(sample.old), similarity, own_rows),
        )

    def quality(self, job: MigrationJob, learned: SpaceMap) -> MapQuality:
        """Measure what mapped vectors keep, with its interval over the queries."""
        texts, old = len(self.sample), None
        if job.qrels:
            keys, stored = _all_vectors(job)
            texts, similarity = len(keys), job.space.similarity
            mapped = self._recall(job, DenseSearch(keys, learned(stored), similarity), self.query_vectors)
            reembedded = self._recall(
                job, DenseSearch(self.sample.keys, self.sample.new, similarity), self.query_vectors
            )
            if self.old_query_vectors is not None:
                search = DenseSearch(keys, stored, job.header.space.similarity)
                old = self._recall(job, search, self.old_query_vectors)
        else:
            mapped = np.asarray(
                neighbour_recall(self.reembedded, self.reembedded if self.mapped is None else self.mapped)
            )
            reembedded = np.ones_like(mapped)
            old = None if self.old is None else neighbour_recall(self.reembedded, self.old)
        scores, samples = resample(mean_scorer(np.stack([mapped, reembedded]).astype(np.float64)), len(reembedded))
        low, high = np.quantile(samples[0] / np.maximum(samples[1], 1e-12), [0.025, 0.975])
        best = max(float(scores[1]), 1e-12)
        return MapQuality(
            recall=float(scores[0]) / best,
            low=float(low),
            high=float(high),
            old_recall=None if old is None else float(old.mean()) / best,
            is_judged=bool(job.qrels),
            queries=len(self.queries),
            texts=texts,
        )

    def _recall(self, job: MigrationJob, search: DenseSearch, query_vectors: Embeddings) -> Embeddings:
        """[queries] share of the relevant documents that are among the first ten chunks."""
        stored = {document_id_of(key) for key in self.sample.keys}
        recalls = []
        for id, scored in zip(self.ids, search.search(query_vectors, 2 * NEIGHBOURS), strict=True):
            relevant = _relevant(job, id) & stored
            documents = [document_id_of(key) for key, _ in scored]
            # a query that is a document, too, does not look for itself
            first = [document for document in documents if document != id or id in relevant][:NEIGHBOURS]
            recalls.append(len(relevant & set(first)) / len(relevant))
        return np.array(recalls, np.float32)

    def changes(self) -> tuple[QueryChange, ...]:
        """Return the first queries with what they find before and after."""

        def texts(found: NDArray[np.intp] | None, row: int) -> tuple[FoundText, ...] | None:
            sample = self.sample
            if found is None:
                return None
            return tuple(found_text(document_id_of(sample.keys[at]), sample.texts[at]) for at in found[row])

        return tuple(
            QueryChange(
                query,
                texts(self.old, row),
                texts(self.reembedded if self.mapped is None else self.mapped, row) or (),
                None if self.mapped is None else texts(self.reembedded, row),
            )
            for row, query in enumerate(self.queries[:SHOWN_QUERIES])
        )


def texts_of(job: MigrationJob) -> dict[str, str]:
    """Return chunk key -> text for all chunks that have one."""
    return {key: text for key, text in zip(*job.source.read_texts(), strict=True) if text.strip()}


def _all_vectors(job: MigrationJob) -> tuple[list[str], Embeddings]:
    """Return keys and old vectors of all chunks, or of as many as are searched exactly."""
    documents = sorted(job.source.document_digests())
    share = MAX_EXACT_BYTES / max(1, job.source.count_chunks() * max(job.space.dim, job.header.dim) * 4)
    if share >= 1:
        return job.source.read_vectors()
    judged_ids = {id for row in job.qrels.values() for id in row}
    chosen = np.random.default_rng(0).random(len(documents)) < share
    return job.source.read_vectors([id for id, keep in zip(documents, chosen, strict=True) if keep or id in judged_ids])


def _relevant(job: MigrationJob, query_id: str) -> set[str]:
    return {document for document, value in job.qrels.get(query_id, {}).items() if value > 0}


def describe_sample(sample: Sample) -> str:
    """Return what queries search, for a page."""
    return f"a sample of {len(sample)} chunks that both encoders have embedded"


def found_text(id: str, text: str) -> FoundText:
    """Return the beginning of a text with the id of its document."""
    return FoundText(id, textwrap.shorten(text, _SHOWN_CHARACTERS, placeholder=" ..."))


def _shared(before: Sequence[FoundText], after: Sequence[FoundText]) -> float:
    ids = {found.id for found in before}
    return len(ids & {found.id for found in after}) / len(ids) if ids else 1.0
