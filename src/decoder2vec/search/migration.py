"""Move an index to another encoder: embed its texts again, or map its vectors, while the old one serves.

The new vectors are written into a table of their own, beside the one that serves. The header names the table, so that
replacing the header switches from one to the other in one step. A kill leaves the old index or the new one, and the
same call goes on with the documents that the new table does not have yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import fingerprint, from_table, to_table
from decoder2vec.errors import InputError, StorageError, unknown_name
from decoder2vec.maths.space_map import MAPS, NEIGHBOURS, Paired, SpaceMap, fit_map
from decoder2vec.progress import current_progress
from decoder2vec.search.bridged import BRIDGE_KEY
from decoder2vec.search.comparison import (
    MAX_MEASURED_QUERIES,
    SHOWN_QUERIES,
    FoundText,
    MapQuality,
    MigrationJob,
    QueryChange,
    Sample,
    SampleSearch,
    describe_sample,
    found_text,
    old_vectors,
    texts_of,
)
from decoder2vec.search.index import MappedVectors, open_store, open_with_header
from decoder2vec.search.ranking import DocumentRanker, choose_ann
from decoder2vec.search.store import (
    Chunk,
    ChunkStore,
    Embeddings,
    EmbeddingSpace,
    document_id_of,
    keep_encoder,
    resolve_encoder,
    without_password,
)
from decoder2vec.search.tuning import Qrels, read_queries
from decoder2vec.storage import parse_json
from decoder2vec.text.qrels import read_qrels

_EMBEDDED_DOCUMENTS, _MAPPED_DOCUMENTS = 64, 2048
"""Documents that are written in one step; a kill loses at most the work on as many."""
_HELD_OUT, _VALIDATION = 0.2, 0.1
"""Shares of the sample that the recall is measured on, and by which the map is chosen."""
_MIN_SAMPLE = 200

Transform = Callable[[Sequence[Chunk], Embeddings], Embeddings]
"""From chunks and their old vectors to their new vectors."""


@dataclass(frozen=True)
class Migration:
    """What `migrate` did, or would do."""

    index: str
    old_encoder: str
    """Fingerprint and dimensions of the old encoder, and of the new one."""
    new_encoder: str
    is_switched: bool
    """Whether the index has the new vectors now."""
    chunks: int
    """Number of chunks that have new vectors, or would have."""
    map: str = ""
    """procrustes, affine or mlp, with what was chosen for it; empty if texts are embedded again."""
    quality: MapQuality | None = None
    changes: tuple[QueryChange, ...] = field(default=(), repr=False)
    """Sample queries: those that were given, or texts of the index, each without itself."""
    searched: str = ""
    """What the sample queries searched."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as a document."""
        changes = [
            {**asdict(change), "kept": change.kept, "kept_of_true": change.kept_of_true} for change in self.changes
        ]
        return {**asdict(self), "changes": changes}


def migrate(
    index: str | Path,
    encoder: Any,
    *,
    map: str | None = None,
    sample: int = 5000,
    min_recall: float = 0.95,
    queries: str | Path | Mapping[str, str] | None = None,
    qrels: str | Path | Qrels | None = None,
    dry_run: bool = False,
    encoder_options: Mapping[str, Any] | None = None,
    notify: Callable[[str], object] = lambda _: None,
) -> Migration:
    """Move an index to another encoder; ids, texts, metadata and settings stay.

    Without `map`, all texts are embedded again. With `map`, the new encoder embeds a sample, a map from old to new
    vectors is learned from it, and its recall is measured on texts that it was not learned from: below `min_recall` it
    is refused, else all vectors are mapped. Queries, and documents that are added later, are embedded by the new
    encoder. To replace mapped vectors by true ones later, migrate to the same encoder without `map`.

    The old index serves all the while, and documents may be added to it. The switch is one step; whoever has the old
    index open goes on with it, but must open it again to write. If the process stops, the same call goes on.

    Args:
        index: Folder, or `postgresql://user@host/database#name`.
        encoder: The new encoder: an `Encoder`, anything with `encode`, a model name or folder.
        map: "procrustes" (a rotation), "affine" (low rank), "mlp", or "auto": the best of these. None embeds again.
        sample: Number of texts to learn a map from and to measure it on.
        min_recall: Least recall, from 0 to 1, that a map must keep; see `MapQuality.recall`.
        queries: Sample queries: query id -> text, or a file with `_id` and `text`. A map is measured with them.
        qrels: Query id -> document id -> relevance, or a file; recall is then that of relevant documents.
        dry_run: Measure and compare, but change nothing.
        encoder_options: Options of `Encoder.from_pretrained` for an encoder that is given by name.
        notify: Called with messages for the user.

    Raises:
        InputError: There is no index, or the map is refused.
        StorageError: Another process migrates or writes to the index; the same call goes on later.

    Example:
        >>> import decoder2vec as d2v
        >>> index = d2v.Index.create("library", d2v.load_encoder("random:8"))
        >>> changes = index.add(["A kitten naps.", "Stocks fell."])
        >>> result = d2v.migrate("library", "tiny-llama")
        >>> result.is_switched, result.chunks
        (True, 2)
        >>> len(d2v.Index.open("library").search("kitten"))
        2
    """
    if map is not None and map not in ("auto", *MAPS):
        raise unknown_name("map", map, ("auto", *MAPS))
    if not 0 <= min_recall <= 1:
        raise InputError(f"min_recall is {min_recall}; give a share from 0 to 1.")
    if qrels is not None and queries is None:
        raise InputError("Give the queries that the judgements are for.")
    source, header = open_with_header(index)
    display_location = without_password(index)
    queries = read_queries(Path(queries)) if isinstance(queries, str | Path) else dict(queries or {})
    qrels = read_qrels(Path(qrels)) if isinstance(qrels, str | Path) else dict(qrels or {})
    encoder = resolve_encoder(encoder, **encoder_options or {})
    space = EmbeddingSpace.of(encoder)
    if header.space.matches(space) and (map or not header.mapped):
        if not dry_run:
            with source.migration_lock(), source.write_lock():  # a killed run may not have recorded the checksums
                _remove_remains(source)
        return Migration(display_location, str(header.space), str(space), True, 0)
    limited = replace(header.chunking, window=0).limited_to(encoder)  # the new encoder has a context of its own
    if limited.size < header.chunking.size:
        notify(
            f"warning: chunks of {display_location} have up to {header.chunking.size} tokens, and the new encoder "
            f"reads {limited.size}: the end of longer ones is ignored, unless the documents are indexed again"
        )
    chunking = replace(header.chunking, window=limited.window)
    job = MigrationJob(index, display_location, source, header, encoder, space, chunking, queries, qrels, notify)
    if map:
        return _migrate_by_map(job, map, sample, min_recall, dry_run)
    return _embed_again(job, sample, dry_run)


def _result(job: MigrationJob, **fields: Any) -> Migration:
    chunks = fields.pop("chunks", None)
    count = job.source.count_chunks() if chunks is None else chunks
    return Migration(job.display_location, str(job.header.space), str(job.space), chunks=count, **fields)


# --- both ways ------------------------------------------------------------------------------------------------------


def _write_and_switch(
    job: MigrationJob, generation: str, transform: Transform, at_once: int, mapped: MappedVectors | None
) -> ChunkStore:
    """Write the new table, switch to it and return its store. The caller holds the migration lock."""
    source, target = job.source, open_store(job.location)
    source.remove_other_generations(job.header.generation, generation)
    target.generation = generation
    if not target.is_created():
        target.create(job.header.id, job.space.dim)
    keep_encoder(target, job.encoder)
    _copy_missing(source, target, transform, at_once)
    dim, similarity = job.space.dim, job.space.similarity
    kinds = () if similarity == "manhattan" else target.ann_kinds(dim)
    ann = job.header.ann if job.header.ann in ("none", *kinds) else "auto"
    with current_progress().phase("saving"):
        target.optimise(choose_ann(ann, kinds, target.count_chunks(), dim), similarity)
    with source.write_lock():
        _copy_missing(source, target, transform, at_once)  # what was added since
        if mapped:
            mapped = replace(mapped, chunks=target.count_chunks())
        header = replace(
            job.header,
            dim=dim,
            space=job.space,
            chunking=job.chunking,
            ann=ann,
            generation=generation,
            mapped=mapped,
        )
        source.write_header(to_table(header))  # from now on, it is the new index
    if job.header.tuned:
        job.notify("hybrid search was tuned with the old encoder; tune it again: d2v index --tune")
    return target


def _finish(job: MigrationJob, target: ChunkStore) -> None:
    """Remove the old vectors, unless another process has them open, and index the words anew."""
    job.source.close()
    with target.write_lock():
        _remove_remains(target)
        DocumentRanker(target, job.space.similarity).prepare()
    target.close()


def _remove_remains(store: ChunkStore) -> None:
    """Remove the map, and other generations than that of the store unless another process has them open."""
    store.remove_other_generations(store.generation)
    _map_file(store, store.generation).unlink(missing_ok=True)


def _copy_missing(source: ChunkStore, target: ChunkStore, transform: Transform, at_once: int) -> None:
    """Write all documents that the target does not have as the source has them, and remove those that are gone."""
    wanted, stored = source.document_digests(), target.document_digests()
    target.delete_documents(sorted(stored.keys() - wanted.keys()))
    missing = iter(sorted(id for id, digest in wanted.items() if stored.get(id) != digest))
    n_chunks = max(0, source.count_chunks() - target.count_chunks())
    with current_progress().phase("encoding", n_chunks):
        while ids := list(islice(missing, at_once)):
            keys, vectors = source.read_vectors(ids)
            chunks = source.read_chunks(keys)
            # a document that another process deletes or replaces meanwhile is seen by the next pass
            rows = [row for row, key in enumerate(keys) if key in chunks]
            whole = _whole_documents([chunks[keys[row]] for row in rows])
            rows = [row for row in rows if chunks[keys[row]].document in whole]
            if rows:
                selected = [chunks[keys[row]] for row in rows]
                is_stored = any(chunk.document in stored for chunk in selected)
                target.write_chunks(selected, transform(selected, vectors[rows]), replace=is_stored)


def _whole_documents(chunks: Sequence[Chunk]) -> set[str]:
    """Return the documents of which all chunks are there, of one version."""
    of_document: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        of_document.setdefault(chunk.document, []).append(chunk)
    return {
        id
        for id, parts in of_document.items()
        if len({part.digest for part in parts}) == 1 and len(parts) == parts[0].total
    }


def _generation(job: MigrationJob, map: str) -> str:
    """Return the name of the table, the same for every run that does the same."""
    header, space = job.header, job.space
    probe = [round(value, 3) for value in space.probe]
    return fingerprint(header.id, header.generation, space.dim, space.fingerprint, probe, map)[:8]


# --- embed again ----------------------------------------------------------------------------------------------------


def _embed_again(job: MigrationJob, sample: int, dry_run: bool) -> Migration:
    if dry_run:
        drawn = Sample.draw(job, texts_of(job), min(sample, MAX_MEASURED_QUERIES)).with_true_vectors(job)
        changes = SampleSearch.of(job, drawn, None).changes()
        return _result(job, is_switched=False, changes=changes, searched=describe_sample(drawn))
    with job.source.migration_lock():
        shown = Sample.draw(job, texts_of(job), SHOWN_QUERIES)
        old = _OldQueries.of(job, shown)
        before = _rank(job.source, job.header.space.similarity, old.vectors, old.own_documents)
        target = _write_and_switch(
            job,
            _generation(job, ""),
            lambda chunks, _: job.encode_chunks(_checked_chunks(chunks)),
            _EMBEDDED_DOCUMENTS,
            None,
        )
        vectors = job.encode(old.texts, "query") if old.texts else np.empty((0, job.space.dim), np.float32)
        after = _rank(target, job.space.similarity, vectors, old.own_documents)
        changes = tuple(
            QueryChange(text, None if before is None else before[row], after[row] if after else ())
            for row, text in enumerate(old.texts)
        )
        count = target.count_chunks()
        _finish(job, target)
    return _result(job, is_switched=True, chunks=count, changes=changes, searched=f"all {count} chunks")


def _checked_chunks(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """The same chunks, if none is an item that came through a bridge: its vector is not that of its text."""
    if item := next((chunk for chunk in chunks if BRIDGE_KEY in chunk.metadata), None):
        raise InputError(
            f"{item.document!r} is an item whose vector came through a bridge, not from its text; use --map, or index "
            "the items again through a bridge to the new encoder."
        )
    return chunks


@dataclass(frozen=True)
class _OldQueries:
    """Sample queries with their vectors by the old encoder, where these are known."""

    texts: list[str]
    vectors: Embeddings | None
    own_documents: list[str]
    """The document that each query is of, which is left out of what it finds; or nothing."""

    @classmethod
    def of(cls, job: MigrationJob, shown: Sample) -> _OldQueries:
        if not job.queries:
            return cls(shown.texts, shown.old, [document_id_of(key) for key in shown.keys])
        texts = list(job.queries.values())[:SHOWN_QUERIES]
        return cls(texts, old_vectors(job, texts), [""] * len(texts))


def _rank(
    store: ChunkStore, similarity: str, vectors: Embeddings | None, own_documents: Sequence[str]
) -> list[tuple[FoundText, ...]] | None:
    if vectors is None or not len(vectors):
        return None
    rankings = DocumentRanker(store, similarity).dense(vectors, NEIGHBOURS + 1)
    others = [
        [document for document in ranked if document.id != own][:NEIGHBOURS]
        for ranked, own in zip(rankings, own_documents, strict=True)
    ]
    chunks = store.read_chunks([document.chunk_key for ranked in others for document in ranked])
    return [
        tuple(
            found_text(document.id, chunks[document.chunk_key].text)
            for document in ranked
            if document.chunk_key in chunks
        )
        for ranked in others
    ]


# --- map ------------------------------------------------------------------------------------------------------------


def _migrate_by_map(job: MigrationJob, kind: str, sample: int, min_recall: float, dry_run: bool) -> Migration:
    generation = _generation(job, kind)
    file = _map_file(job.source, generation)
    with job.source.migration_lock():
        saved = _read_map(file)
        if saved is None or dry_run:
            learned, held_out = _learn(job, kind, sample)
            searched = SampleSearch.of(job, held_out, learned)
            quality = searched.quality(job, learned)
            job.notify(f"{_map_name(learned)} keeps {quality}")
            result = _result(
                job,
                is_switched=False,
                map=_map_name(learned),
                quality=quality,
                changes=searched.changes(),
                searched=describe_sample(held_out),
            )
            if dry_run:
                return result
            if quality.recall < min_recall:
                raise InputError(
                    f"The map keeps {100 * quality.recall:.1f} % of the new encoder's recall@10, less than "
                    f"{100 * min_recall:g} %; embed the texts again (without a map), or accept less."
                )
            job.source.local_folder.mkdir(parents=True, exist_ok=True)
            _save_map(learned, result, file)
        else:
            learned, result = saved
        mapped = MappedVectors(
            str(job.header.space), _map_name(learned), result.quality.recall if result.quality else 0.0, 0
        )
        target = _write_and_switch(job, generation, lambda _, vectors: learned(vectors), _MAPPED_DOCUMENTS, mapped)
        count = target.count_chunks()
        _finish(job, target)
    return replace(result, is_switched=True, chunks=count)


def _learn(job: MigrationJob, kind: str, sample: int) -> tuple[SpaceMap, Sample]:
    """Learn a map from a part of a sample; return it with the texts that are held out, which have true vectors.

    All judged documents are held out.
    """
    text_of, judged_ids = texts_of(job), {id for row in job.qrels.values() for id in row}
    judged_texts = {key: text for key, text in text_of.items() if document_id_of(key) in judged_ids}
    drawn = Sample.draw(job, {key: text for key, text in text_of.items() if key not in judged_texts}, sample)
    if len(drawn) < _MIN_SAMPLE:
        raise InputError(
            f"{len(drawn)} texts are too few to learn and measure a map; it needs {_MIN_SAMPLE}: embed them again."
        )
    judged = Sample.draw(job, judged_texts)
    with current_progress().phase("encoding", len(drawn) + len(judged)):
        drawn, judged = drawn.with_true_vectors(job), judged.with_true_vectors(job)
    n_held_out, n_validation = round(_HELD_OUT * len(drawn)), round(_VALIDATION * len(drawn))
    rest = Paired(drawn.old, drawn.new, job.header.space.similarity, job.space.similarity)[n_held_out:]
    with current_progress().phase("learning the map"):
        learned = fit_map(kind, rest[n_validation:], rest[:n_validation])
    return learned, drawn.first(n_held_out).joined(judged)


def _map_name(learned: SpaceMap) -> str:
    return f"{learned.kind} ({learned.detail})" if learned.detail else learned.kind


def _map_file(store: ChunkStore, generation: str) -> Path:
    return store.local_folder / f"space_map-{generation}.safetensors"


def _save_map(learned: SpaceMap, result: Migration, file: Path) -> None:
    """Keep a map and what was measured until the switch, so that all vectors are mapped by the same one."""
    import torch

    from decoder2vec.tensor_files import save_tensors

    description = {name: getattr(learned, name) for name in ("kind", "detail", "unit_input", "unit_output")}
    metadata = {"map": json.dumps(description), "result": json.dumps(asdict(result))}
    save_tensors({name: torch.as_tensor(values) for name, values in learned.weights.items()}, file, metadata)


def _read_map(file: Path) -> tuple[SpaceMap, Migration] | None:
    """Return what `_save_map` kept; None if there is nothing or it is damaged, since it can be learned again."""
    from decoder2vec.tensor_files import load_tensors

    if not file.is_file():
        return None
    try:
        tensors, metadata = load_tensors(file)
        weights = {name: tensor.numpy() for name, tensor in tensors.items()}
        learned = SpaceMap(**parse_json(metadata["map"]), weights=weights)
        return learned, from_table(Migration, parse_json(metadata["result"]))
    except (StorageError, InputError, KeyError, TypeError, ValueError):
        return None
