"""The index: add documents, search them, tune hybrid search, verify what is stored."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoder2vec.config import as_tuple, fingerprint, from_table, to_table
from decoder2vec.encoder_folder import is_encoder_folder
from decoder2vec.errors import InputError, StorageError, unknown_name
from decoder2vec.maths.probability import Probability
from decoder2vec.progress import current_progress
from decoder2vec.quick_encoder import QuickEncoder, open_for_queries
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import DocumentSource, is_embedded_folder, source_bytes, to_documents
from decoder2vec.search.hybrid import Candidates, Fusion, RankedDocument
from decoder2vec.search.indexing import IndexChanges, add_documents, source_record
from decoder2vec.search.ranking import DenseSearch, DocumentRanker
from decoder2vec.search.snippets import Snippet, make_snippets
from decoder2vec.search.store import (
    Chunk,
    ChunkStore,
    Embeddings,
    EmbeddingSpace,
    MetadataFilter,
    encode_texts,
    encoder_folder,
    keep_encoder,
    resolve_encoder,
    without_password,
)
from decoder2vec.search.tuning import Qrels, TuningResult, choose_fusion, read_queries
from decoder2vec.text.files import PAIR_COLUMNS, ScoredPairs, read_pairs
from decoder2vec.text.qrels import read_qrels

if TYPE_CHECKING:  # they import torch
    from decoder2vec.bridge.bridge import Bridge
    from decoder2vec.search.rerank import SupportsRerank, WeightedCosineReranker

MODES = ("dense", "lexical", "hybrid")
_FORMAT = 1
_DEFAULT_FUSION_OF_0_1 = Fusion("rrf", 0.5)
"""Indexes of version 0.1 do not say whether they were tuned; one with this fusion was not."""
_MIN_FUSED = 100
"""Documents of each ranking that are fused, at least."""
MIN_RERANKED = 30
"""Documents that are rescored by a reranker, at least, unless the index was tuned."""
_VERIFIED_AT_ONCE = 1000
"""Chunks that `verify` reads at once."""
_READ_AT_ONCE = 2**26
"""Bytes of files that are read before the first document is encoded, so that the time left is known; larger sources are
read as they are encoded."""


@dataclass(frozen=True)
class Hit:
    """A document that a search found."""

    id: str
    score: float
    """Hybrid search: the weighted mean of `dense` and `lexical`, from 0 to 1 with the default fusion. Dense search: the
    similarity. Lexical search: the BM25 score. With a reranker: its score."""
    text: str
    """Text of the best chunk; a short document is one chunk."""
    metadata: dict[str, Any]
    snippet: Snippet
    """Excerpt of the chunk, with its best sentence marked."""
    chunk: int = 0
    """Position of the chunk in the document, from 0."""
    dense: float | None = None
    """Hybrid search: the dense score as the fusion scales it; by default from 0 (the least similar candidate) to 1 (the
    query itself)."""
    lexical: float | None = None
    """Hybrid search: the BM25 score as the fusion scales it; by default from 0 (no word of the query) to 1 (all)."""
    probability: Probability | None = None
    """Probability that the document answers the query, by its similarity, if the encoder is calibrated."""


@dataclass(frozen=True)
class IndexStats:
    """What `Index.stats` returns."""

    documents: int
    chunks: int
    dim: int
    encoder: str
    """Model of the encoder, if it is known."""
    fingerprint: str
    """That of the encoder; another one if chunks are encoded together."""
    similarity: str
    chunking: Chunking
    """How documents are split, and whether their chunks are encoded together."""
    size: int
    """Bytes on disk."""
    ann: str
    """Kind of approximate index of the vectors that is built, or "none": then search is exact."""
    unindexed: int
    """Chunks that are not in the approximate index yet; search compares them exactly."""
    deleted: int
    """Rows of deleted chunks that still take space."""


@dataclass(frozen=True)
class MappedVectors:
    """How the vectors of an index came from those of another encoder. Documents added since are encoded."""

    encoder: str
    """The space that they were mapped from: the fingerprint of its encoder and the number of dimensions."""
    map: str
    """procrustes, affine or mlp."""
    recall: float
    """Share of the new encoder's recall@10 that they keep, as measured by `migrate` (`MapQuality.recall`)."""
    chunks: int
    """Number of chunks with mapped vectors at that time."""

    def __str__(self) -> str:
        return (
            f"{self.chunks} vectors mapped by {self.map} from {self.encoder}, keeping {100 * self.recall:.1f} % of the "
            "new encoder's recall@10"
        )


@dataclass(frozen=True)
class IndexHeader:
    """What is stored about the index itself: `index.json` of a folder, a row in a database."""

    id: str
    dim: int
    space: EmbeddingSpace
    chunking: Chunking
    fusion: Fusion = field(default_factory=Fusion)
    tuned: bool = False
    """Whether the fusion was chosen for this index."""
    rerank_depth: int = MIN_RERANKED
    """Number of documents that a reranker rescores, as `tune` chose."""
    ann: str = "auto"
    """Kind of approximate index of the vectors; "auto" depends on the size."""
    generation: str = ""
    """Names the table of chunks and the encoder, after a move to another encoder."""
    mapped: MappedVectors | None = None
    """Where the vectors come from, if a map moved them from the space of another encoder."""
    format: int = _FORMAT

    @property
    def fingerprint(self) -> str:
        """Identifies how the vectors are made: the encoder, and whether chunks are encoded together."""
        encoder, chunking = self.space.fingerprint, self.chunking
        return fingerprint(encoder, "late", chunking.window) if encoder and chunking.late else encoder


class Index:
    """A searchable collection of documents in a folder (LanceDB) or a PostgreSQL database (pgvector).

    Create one with `Index.create`, open an existing one with `Index.open`. One process may write at a time; every open
    index sees what another process has written.

    Attributes:
        location: Folder or database address.
        store: The chunk store at that location.
        header: Id, embedding space, chunking and fusion of the index.
        encoder: The encoder of documents and queries.

    Example:
        >>> import decoder2vec as d2v
        >>> index = d2v.Index.create("library", "tiny-llama")
        >>> changes = index.add([
        ...     "A kitten naps on the red sofa. It is raining.",
        ...     {"id": "news", "text": "Stocks fell sharply on Monday.", "year": 2025},
        ... ])
        >>> changes.added
        2
        >>> [hit.id for hit in d2v.Index.open("library").search("stocks", mode="lexical", filter={"year": 2025})]
        ['news']
        >>> index.search("kitten on a sofa", top=1, mode="lexical")[0].snippet.marked()
        '**A kitten naps on the red sofa.** It is raining.'
        >>> index.delete(["news"])
        ['news']
        >>> index.verify()
    """

    def __init__(self, location: str | Path, store: ChunkStore, header: IndexHeader, encoder: Any) -> None:
        self.store, self.header, self.encoder = store, header, encoder
        store.generation = header.generation
        self.location = without_password(location)
        """Where it is, for messages: without a password."""
        self._ranker = DocumentRanker(store, header.space.similarity)

    def __repr__(self) -> str:
        mapped = f", {self.header.mapped}" if self.header.mapped else ""
        late = ", late chunks" if self.header.chunking.late else ""
        return f"Index({self.location!r}, {self.header.space}{late}{mapped})"

    @classmethod
    def create(cls, location: str | Path, encoder: Any, chunking: Chunking | None = None) -> Index:
        """Create a new, empty index.

        Args:
            location: A new folder, or `postgresql://user@host/database#name`.
            encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder. The index
                keeps the description of an `Encoder`, so that `open` needs only the location.
            chunking: Length and overlap of chunks, by default 256 and 32 tokens, shortened to what the encoder reads;
                and whether chunks are encoded together (`late`), which needs an `Encoder`.

        Raises:
            InputError: There is an index already, or the folder holds other files.
        """
        store = open_store(location)
        store.check_new()  # before the encoder is loaded
        encoder = resolve_encoder(encoder)
        space = EmbeddingSpace.of(encoder)
        header = IndexHeader(uuid.uuid4().hex, space.dim, space, (chunking or Chunking()).limited_to(encoder))
        with store.write_lock():
            store.check_new()  # another process may have created one meanwhile
            store.create(header.id, space.dim)
            keep_encoder(store, encoder)
            store.write_header(to_table(header))  # last: a location without a header is not an index
        return cls(location, store, header, encoder)

    @classmethod
    def open(
        cls,
        location: str | Path,
        encoder: Any = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        for_queries: bool = False,
    ) -> Index:
        """Open an existing index.

        Args:
            location: Folder, or `postgresql://user@host/database#name`.
            encoder: An encoder (or model name or folder) of the same embedding space; by default the one that the index
                was created with.
            device: cuda, mps or cpu, for an encoder that is loaded here; by default the best one available.
            dtype: Dtype of such an encoder; by default the one that suits the device.
            for_queries: Load an encoder that starts at once, where there is one, for a few searches; no documents can
                be added.

        Raises:
            InputError: There is no index, or the encoder embeds into another space.
            StorageError: The index is damaged or has the format of another version.
        """
        store, header = open_with_header(location)
        display_location = without_password(location)
        if encoder is None:
            encoder = encoder_folder(store)
            if not is_encoder_folder(encoder):
                raise InputError(f"The encoder of {display_location} is not known on this machine; give an encoder.")
        if for_queries and isinstance(encoder, str | Path):
            encoder = open_for_queries(encoder, device, dtype)
        encoder = resolve_encoder(encoder, device=device, dtype=dtype)
        header.space.check_encoder(encoder, display_location)
        return cls(location, store, header, encoder)

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        """Return whether there is an index at a location."""
        return open_store(location).header() is not None

    def add(
        self,
        documents: DocumentSource | None = None,
        *,
        vectors: Any = None,
        through: Bridge | None = None,
        columns: str | Sequence[str] = (),
        progress: Callable[[IndexChanges], object] | None = None,
        notify: Callable[[str], object] = lambda _: None,
    ) -> IndexChanges:
        """Add documents, replacing those with the same id; unchanged documents are not encoded again.

        Batches are stored as they are ready. If the process stops, the same call continues where it stopped.

        A folder is mirrored: documents that an earlier call read from it and that are gone are removed, and those of
        renamed files are moved without being encoded again. Documents that were added otherwise are never removed.

        Args:
            documents: A folder or file (see `read_documents`), a folder that `embed_dataset` wrote (its vectors are
                taken as they are), or an iterable of `Document`s, texts and dicts with
                `text`, optionally `id` or `_id`, and metadata. With `vectors`: one for each of them, such as captions;
                by default "item 0", "item 1" and so on.
            vectors: [items, dim] vectors of other origin, such as sounds, images or users.
            through: The contrastive bridge, to the encoder of this index, that makes them comparable with texts.
            columns: Columns of a table, or keys of a dict, that are joined to the text. By default `text`; in a table
                without it, all columns that hold text.
            progress: Called with the changes so far after every batch.
            notify: Called with messages for the user.

        Returns:
            Counts of added, updated, unchanged, moved and removed documents, and the skipped ones with their reasons.
        """
        columns = as_tuple(columns)
        if isinstance(self.encoder, QuickEncoder):
            raise InputError("This index was opened for queries; open it without `for_queries` to add documents.")
        if vectors is not None or through is not None:
            from decoder2vec.search.bridged import bridged_documents

            documents = bridged_documents(self.header.space, vectors, through, documents, columns)
        elif documents is None:
            raise InputError("There is nothing to add; give documents, or vectors through a bridge.")
        if isinstance(documents, str | Path) and is_embedded_folder(documents):
            from decoder2vec.search.embedded import embedded_documents

            documents = embedded_documents(documents, self.encoder)
        folder = Path(documents) if isinstance(documents, str | Path) and os.path.isdir(documents) else None
        with self.store.write_lock():
            changes = add_documents(
                self.store,
                self.encoder,
                self.header.chunking,
                to_documents(documents, columns, notify),
                folder,
                progress or (lambda _: None),
                read_first=isinstance(documents, str | Path) and source_bytes(Path(documents)) <= _READ_AT_ONCE,
            )
            with current_progress().phase("saving"):
                self._ranker.prepare()
        return changes

    def delete(self, ids: str | int | Iterable[str | int]) -> list[str]:
        """Remove documents by their id, one or several; returns the ids that existed."""
        wanted = map(str, as_tuple(ids))
        with self.store.write_lock():
            stored = self.store.document_digests()
            existing = [id for id in dict.fromkeys(wanted) if id in stored]
            self.store.delete_documents(existing)
            source_record(self.store).forget(existing)
        return existing

    def search(
        self,
        query: str,
        top: int = 10,
        mode: str = "hybrid",
        filter: MetadataFilter | None = None,
        rerank: SupportsRerank | None = None,
        *,
        exact: bool = False,
    ) -> list[Hit]:
        """Return the documents that answer a query best, best first; each occurs once, by its best chunk.

        Args:
            query: Text to search for; a blank one finds nothing.
            top: Maximum number of documents.
            mode: "dense" (embedding similarity), "lexical" (BM25) or "hybrid" (both, fused as `tune` chose).
            filter: Required metadata, such as {"kind": "pet", "year": [2024, 2025]}: all keys must match, each with its
                value or one of its values. "2025" matches the number 2025, too.
            rerank: Rescores the best 30 documents, or as many as `tune` chose. Anything with `rerank(query, texts)`,
                such as a `Reranker`, a `PairReranker` or what `load_reranker` returns.
            exact: Compare the query with every vector, even if there is an approximate index.

        Raises:
            InputError: `mode` is unknown, or `top` is less than 1.
        """
        if not isinstance(query, str):
            raise InputError("`search` takes one query; `rank` takes a list of them.")
        if rerank is not None and not callable(getattr(rerank, "rerank", None)):
            raise InputError(f"A {type(rerank).__name__} has no `rerank`; give a `Reranker` or a `PairReranker`.")
        depth = max(top, self.header.rerank_depth) if rerank else top
        ranked = self.rank([query], depth, mode, filter, exact=exact)[0]
        chunks = self.store.read_chunks([document.chunk_key for document in ranked])
        # another process may have deleted a document since it was ranked
        ranked = [document for document in ranked if document.chunk_key in chunks]
        if rerank and ranked:
            scores = rerank.rerank(query, [chunks[document.chunk_key].text for document in ranked])
            rescored = [document._replace(score=float(score)) for document, score in zip(ranked, scores, strict=True)]
            ranked = sorted(rescored, key=lambda document: -document.score)
        ranked = ranked[:top]
        snippets = make_snippets(query, [chunks[document.chunk_key].text for document in ranked], self._encode)
        probabilities = self._probabilities(query, ranked)
        return [
            Hit(
                document.id,
                document.score,
                chunk.text.rstrip(),  # chunks that are encoded together have the white space between them
                chunk.metadata,
                snippet,
                chunk.number,
                document.dense,
                document.lexical,
                probabilities.get(document.chunk_key),
            )
            for document, snippet in zip(ranked, snippets, strict=True)
            if (chunk := chunks[document.chunk_key])
        ]

    def rank(
        self,
        queries: Sequence[str],
        top: int = 10,
        mode: str = "hybrid",
        filter: MetadataFilter | None = None,
        *,
        exact: bool = False,
    ) -> list[list[RankedDocument]]:
        """Return ids and scores for many queries at once, which is faster than `search`; parameters as there."""
        if isinstance(queries, str):
            raise InputError("`rank` takes a list of queries, not one; put it into a list.")
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if top < 1:
            raise InputError(f"top is {top}; ask for 1 or more documents.")
        if mode != "hybrid":
            return self._rank_by(mode, queries, top, filter, exact)
        candidates = self._candidates(queries, max(top, _MIN_FUSED), filter, exact)
        return [self.header.fusion(*both)[:top] for both in candidates]

    def tune(
        self,
        queries: str | Path | Mapping[str, str],
        qrels: str | Path | Qrels,
        rerank: SupportsRerank | None = None,
        *,
        depth: int = 50,
    ) -> TuningResult:
        """Choose how hybrid search fuses both rankings by nDCG@10 on queries, and keep the choice in the index.

        The fusion stays as it is if cross-validation finds no better one. `set_fusion(Fusion())` undoes the choice.
        With a reranker, the number of documents that it rescores is chosen, too, unless it improves nothing;
        `set_rerank_depth(MIN_RERANKED)` undoes that.

        Args:
            queries: Query id -> text, or a file with `_id` and `text`.
            qrels: Query id -> document id -> relevance, or a file with `query-id`, `corpus-id` and `score`.
            rerank: A reranker, as for `search`, that rescores the best documents of every query.
            depth: Maximum number of documents of a query that it rescores.

        Returns:
            The chosen fusion, nDCG@10 before and after with the interval of the gain, and that of every method and of
            the reranker at several depths.

        Raises:
            InputError: Fewer than 20 queries have a relevant document.
        """
        queries = read_queries(Path(queries)) if isinstance(queries, str | Path) else queries
        qrels = read_qrels(Path(qrels)) if isinstance(qrels, str | Path) else qrels

        def rescore(query: str, ranked: Sequence[RankedDocument]) -> Sequence[float]:
            assert rerank is not None
            chunks = self.store.read_chunks([document.chunk_key for document in ranked])
            return rerank.rerank(query, [chunks[document.chunk_key].text for document in ranked])

        result = choose_fusion(self._candidates, queries, qrels, self.header.fusion, rescore if rerank else None, depth)
        if result.best != result.before:
            self.set_fusion(result.best)
        if result.reranked and result.reranked.gain.value > 0:
            self.set_rerank_depth(result.reranked.depth)
        return result

    def set_rerank_depth(self, depth: int) -> None:
        """Set how many documents a reranker rescores in `search` from now on, and keep it in the index."""
        if depth < 1:
            raise InputError(f"A depth of {depth} rescores nothing; give 1 or more.")
        with self.store.write_lock():
            self._update_header(rerank_depth=depth)

    def set_fusion(self, fusion: Fusion) -> None:
        """Set how hybrid search fuses both rankings from now on, and keep it in the index."""
        with self.store.write_lock():
            self._update_header(fusion=fusion, tuned=fusion != Fusion())

    def build_ann(self, kind: str = "auto") -> None:
        """Build the approximate nearest-neighbour index of the vectors anew, and keep the choice in the index.

        Later `add`s keep it up to date. What is not in it yet is compared exactly, so that search finds all documents
        at any time. It proposes candidates, which are scored by their stored vectors.

        Args:
            kind: "hnsw", "ivf_pq", "ivf_sq" (int8) or "ivf_rq" (binary); a database has only "hnsw". "none" removes the
                index: search is exact, with all vectors in memory. "auto", as in a new index, is "none" up to 512 MB of
                vectors and the store's default beyond.

        Raises:
            InputError: `kind` is unknown, or the store or the similarity has no such index.
        """
        kinds = ("auto", "none", *self._ranker.ann_kinds)
        if kind not in kinds:
            raise unknown_name("approximate index", kind, kinds)
        with self.store.write_lock():
            self._ranker.prepare(kind)
            self._update_header(ann=kind)  # last: it is searched once it is complete

    def stats(self) -> IndexStats:
        """Return counts, size on disk, encoder, and the state of the approximate index."""
        documents, chunks = self.count()
        store, space = self.store.stats(), self.header.space
        model = str(getattr(getattr(self.encoder, "spec", None), "backbone", ""))
        made_by, chunking = self.header.fingerprint, self.header.chunking
        return IndexStats(documents, chunks, space.dim, model, made_by, space.similarity, chunking, **asdict(store))

    def learn_reranker(
        self, pairs: str | Path | ScoredPairs, columns: Sequence[str] = PAIR_COLUMNS
    ) -> WeightedCosineReranker:
        """Learn a reranker from scored pairs of texts, and keep it with the index.

        Args:
            pairs: Scored pairs, or a .tsv, .csv or .jsonl file.
            columns: Names of the columns of the file: two texts and a score.
        """
        from decoder2vec.search.rerank import WeightedCosineReranker

        pairs = pairs if isinstance(pairs, ScoredPairs) else read_pairs(pairs, columns)
        reranker = WeightedCosineReranker.fit(self.encoder, pairs)
        with self.store.write_lock():
            reranker.save(self._reranker_file)
        return reranker

    def load_reranker(self) -> WeightedCosineReranker:
        """Return the reranker that `learn_reranker` kept."""
        from decoder2vec.search.rerank import WeightedCosineReranker

        return WeightedCosineReranker.load(self._reranker_file, self.encoder)

    def count(self) -> tuple[int, int]:
        """Return the number of documents and the number of chunks."""
        return len(self.store.document_digests()), self.store.count_chunks()

    def verify(self) -> None:
        """Check that all files are as they were written, and every document is stored once, whole, with finite vectors.

        Raises:
            StorageError: Something is missing, duplicated or damaged; the message names it.
        """
        self.store.verify_files()
        self._ranker.verify_files()
        _verify(self.store, self.header.dim)

    def close(self) -> None:
        """Close the connection to a database; an index in a folder need not be closed."""
        self.store.close()

    def _update_header(self, **changes: Any) -> None:
        """Change fields of the stored header, of which another process may have changed others."""
        self.header = replace(_read_header(self.store, self.location), **changes)
        self.store.write_header(to_table(self.header))

    @property
    def _reranker_file(self) -> Path:
        return self.store.local_folder / "pair_head.safetensors"

    def _rank_by(
        self, mode: str, queries: Sequence[str], top: int, filter: MetadataFilter | None, exact: bool
    ) -> list[list[RankedDocument]]:
        """Rank by "dense" or "lexical" alone; a blank query finds nothing."""
        searched = [query for query in queries if query.strip()]
        if not searched:
            return [[] for _ in queries]
        if mode == "dense":
            rankings = iter(self._ranker.dense(self._encode(searched, "query"), top, filter, exact=exact))
        else:
            rankings = iter(self._ranker.lexical(searched, top, filter))
        return [next(rankings) if query.strip() else [] for query in queries]

    def _candidates(
        self, queries: Sequence[str], depth: int, filter: MetadataFilter | None = None, exact: bool = False
    ) -> list[Candidates]:
        """Return for each query what a fusion takes: both rankings and the scores of a full match."""
        dense, lexical = (self._rank_by(mode, queries, depth, filter, exact) for mode in ("dense", "lexical"))
        return list(zip(dense, lexical, self._ranker.full_scores(queries), strict=True))

    def _probabilities(self, query: str, ranked: Sequence[RankedDocument]) -> dict[str, Probability]:
        """Chunk key -> probability that the chunk answers the query; nothing if the encoder is not calibrated."""
        curve = getattr(self.encoder, "probabilities", {}).get("search")
        if not curve or not ranked:
            return {}
        stored = self.store.read_vectors([document.id for document in ranked])
        chunks = DenseSearch(*stored, self.header.space.similarity)
        return {key: curve(score) for key, score in chunks.search(self._encode([query], "query"), len(chunks))[0]}

    def _encode(self, texts: list[str], role: str) -> Embeddings:
        return encode_texts(self.encoder, texts, role)


def open_with_header(location: str | Path) -> tuple[ChunkStore, IndexHeader]:
    """Return the store and the header of an existing index, without its encoder.

    Raises:
        InputError: There is no index.
        StorageError: The index is damaged or has the format of another version.
    """
    store, display_location = open_store(location), without_password(location)
    header = _read_header(store, display_location)
    store.generation = header.generation
    return store, header


def open_store(location: str | Path) -> ChunkStore:
    """Return the store in a folder, or in a database at `postgresql://host/database#name`."""
    if str(location).startswith(("postgresql://", "postgres://")):
        from decoder2vec.search.postgres_store import PostgresStore

        return PostgresStore(str(location))
    if "://" in str(location):
        raise InputError(
            f"{without_password(location)} cannot hold an index; give a folder or postgresql://host/database#name."
        )
    from decoder2vec.search.lance_store import LanceStore

    return LanceStore(Path(location))


def _read_header(store: ChunkStore, display_location: str) -> IndexHeader:
    table = store.header()
    if table is None:
        raise InputError(f"There is no index at {display_location}; create one with `d2v index`.")
    if table.get("format") != _FORMAT:
        raise StorageError(f"The index at {display_location} is of another version of this package; create it again.")
    try:
        header = from_table(IndexHeader, table)
    except (InputError, TypeError) as error:
        raise StorageError(f"The header of the index at {display_location} is damaged: {error}") from None
    if table.get("tuned", header.fusion != _DEFAULT_FUSION_OF_0_1):
        return replace(header, tuned=True)
    return replace(header, fusion=Fusion())  # an index that was not tuned follows today's default


def _verify(store: ChunkStore, dim: int) -> None:
    keys, vectors = store.read_vectors()
    if len(set(keys)) != len(keys):
        duplicates = sorted(key for key in set(keys) if keys.count(key) > 1)
        raise StorageError(
            f"The index holds {len(duplicates)} chunks twice, such as {duplicates[0]!r}; create it again."
        )
    if vectors.shape != (len(keys), dim) or not np.isfinite(vectors).all():
        raise StorageError("The index holds damaged vectors; create it again.")
    chunks_of: dict[str, list[Chunk]] = {}
    for start in range(0, len(keys), _VERIFIED_AT_ONCE):
        for chunk in store.read_chunks(keys[start : start + _VERIFIED_AT_ONCE]).values():
            chunks_of.setdefault(chunk.document, []).append(chunk)
    for id, chunks in chunks_of.items():
        if sorted(chunk.number for chunk in chunks) != list(range(chunks[0].total)):
            raise StorageError(f"The index holds {id!r} only in part; delete it and index it again.")
        if len({chunk.digest for chunk in chunks}) > 1:
            raise StorageError(f"The index holds old and new chunks of {id!r}; delete it and index it again.")
    if sum(map(len, chunks_of.values())) != len(keys):
        raise StorageError("The index holds chunks that cannot be found by their keys; create it again.")
