"""Chunk store in a folder: embedded LanceDB. Every change is one commit, so a kill leaves the last commit intact.

- `index.json`: header of the index (embedding space, chunking, fusion); written last when an index is created
- `chunks.lance/`: chunks and vectors
- `encoder/`: description of the encoder, without its model
- `chunks-1a2b3c4d.lance/`, `encoder-1a2b3c4d/`: the same of an index that was moved to another encoder, whose header
  names that generation; `space_map-1a2b3c4d.safetensors` is there while vectors are mapped
- `lexical/`: BM25 index of the chunks, rebuilt when they change
- `pair_head.safetensors`: a reranker learned for this index
- `sources.json`: the folders that documents came from
- `checksums.json`: SHA-256 of all of these but `lexical/`, which has its own
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from decoder2vec.errors import Decoder2VecError, InputError, MissingExtraError, StorageError
from decoder2vec.search.store import (
    Chunk,
    Embeddings,
    MetadataFilter,
    StoreStats,
    check_generation,
    generation_suffix,
    required_tags,
)
from decoder2vec.storage import (
    CHECKSUMS_FILE,
    atomic_file,
    check_replaceable,
    damaged_files,
    files_below,
    mark_as_used,
    parse_json,
    read_checksums,
    unused_folder,
    write_checksums,
    write_lock,
)

_HEADER_FILE = "index.json"
_TABLE_NAME = "chunks"
_TABLE_FOLDER = f"{_TABLE_NAME}.lance"
_LOCK_FILE, _MIGRATION_LOCK_FILE = ".writing", ".migrating"
_VERIFIED_FILES = (_HEADER_FILE, "pair_head.safetensors", "sources.json")
"""Also verified are the table and the encoder of the generation that the header names."""
_UNFINISHED_FILES = (_LOCK_FILE, CHECKSUMS_FILE, _TABLE_FOLDER, f"{_TABLE_FOLDER}/*", "encoder/*")
"""What a killed `Index.create` leaves: the lock file is the first, and the header would have been the last."""
INDEX_FILES = (
    *(*_VERIFIED_FILES, f"{_TABLE_NAME}*.lance/*", "encoder*/*", "lexical/*", "space_map-*.safetensors"),
    *(_LOCK_FILE, _MIGRATION_LOCK_FILE, CHECKSUMS_FILE),
)
"""Patterns of everything that is written into the folder of an index."""
_VERSION_HINT = "latest_version_hint.json"
"""The one file of a table that changes; all others are written once."""
_ID_KEY = b"decoder2vec.index"
"""Where the schema of the table names the index that it belongs to."""
_KEEP_VERSIONS = timedelta(minutes=10)
"""Older versions of the table are removed; a running search still finds the version it began with."""
_COMPACT_EVERY = 1000
"""Commits of chunks after which files are merged: every commit lists all files, so that many of them make it slow."""
_PANICS = ("PanicException", "RustPanic")
"""Errors of native code, of which the first is no subclass of Exception; no module has them to import."""
_DISTANCES = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}
_ANN_TYPES = {"IvfHnswSq": "hnsw", "IvfPq": "ivf_pq", "IvfSq": "ivf_sq", "IvfRq": "ivf_rq"}
"""LanceDB's name of a kind of index -> ours."""
_ANN_NAME = "vector_idx"
_PROBES = 40
"""Partitions that are searched."""
_REFINE = 4
"""Candidates for each chunk wanted, by their quantised vectors; the chunks are chosen by their vectors in float32."""
_REFINE_PRODUCT_CODES = 16
"""The same for `ivf_pq`, whose codes are the shortest."""
_MIN_EF = 100
"""Candidates of a search in a graph, at least."""

P = ParamSpec("P")
T = TypeVar("T")


def _reports_damage(method: Callable[Concatenate[LanceStore, P], T]) -> Callable[Concatenate[LanceStore, P], T]:
    """Raise errors of LanceDB in a method as StorageError."""

    @wraps(method)
    def wrapped(self: LanceStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with _storage_errors(self.folder):
            return method(self, *args, **kwargs)

    return wrapped


class LanceStore:
    """A `ChunkStore` in a folder with a LanceDB table."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.local_folder = folder
        self.generation = ""
        self._opened_table: Any = None
        self._commits = 0
        self._release_table: Callable[[], object] = lambda: None

    def header(self) -> dict[str, Any] | None:
        """Return the header, or None if there is no index."""
        file = self.folder / _HEADER_FILE
        try:
            header = parse_json(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StorageError(f"{file} cannot be read ({error}); create the index again.") from None
        if not isinstance(header, dict):
            raise StorageError(f"{file} is damaged: it holds no JSON object; create the index again.")
        return header

    def check_new(self) -> None:
        """Raise InputError if there is an index, or files other than those of an unfinished `create`."""
        if self.header() is not None:
            raise InputError(f"There is already an index at {self.folder}; use `Index.open`.")
        check_replaceable(self.folder, _UNFINISHED_FILES if (self.folder / _LOCK_FILE).is_file() else ())

    @_reports_damage
    def create(self, index_id: str, dim: int) -> None:
        """Create an empty table; raises StorageError if there is one with documents."""
        database, remains = _connect(self.folder), self.folder / f"{self._table_name}.lance"
        if self.is_created() and database.open_table(self._table_name).count_rows():
            raise StorageError(
                f"{self.folder} holds documents, but {_HEADER_FILE} is gone; restore it or delete the folder."
            )
        shutil.rmtree(remains, ignore_errors=True)
        if not self.generation:
            (self.folder / CHECKSUMS_FILE).unlink(missing_ok=True)  # the new table has files of the same names
        schema = _schema(dim).with_metadata({_ID_KEY: index_id.encode()})
        self._opened_table = database.create_table(self._table_name, schema=schema)
        self._mark_table()

    def is_created(self) -> bool:
        """Return whether `create` has created the table."""
        return any((self.folder / f"{self._table_name}.lance").glob("_versions/*.manifest"))

    def write_header(self, header: dict[str, Any]) -> None:
        """Write the header atomically."""
        with atomic_file(self.folder / _HEADER_FILE) as temporary:
            temporary.write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")

    @_reports_damage
    def revision(self) -> str:
        """Return the id of the index and the number of its last commit."""
        return "-".join(filter(None, (str((self.header() or {}).get("id")), self.generation, str(self._table.version))))

    @_reports_damage
    def count_chunks(self) -> int:
        """Return the number of chunks."""
        return int(self._table.count_rows())

    @_reports_damage
    def document_digests(self) -> dict[str, str]:
        """Return document id -> digest."""
        rows = self._read(["document", "digest"])
        return dict(zip(rows["document"].to_pylist(), rows["digest"].to_pylist(), strict=True))

    @_reports_damage
    def write_chunks(self, chunks: Sequence[Chunk], vectors: Embeddings, replace: bool) -> None:
        """Add or replace the chunks of whole documents in one commit."""
        rows = _to_arrow(chunks, vectors)
        self._commits += 1
        if self._commits % _COMPACT_EVERY == 0:
            self._compact()
        if not replace:
            with self._undone_if_unreadable(first_row=self._table.count_rows()):
                self._table.add(rows)
            return
        documents = _is_in("document", sorted({chunk.document for chunk in chunks}))
        merge = self._table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        with self._undone_if_unreadable():
            merge.when_not_matched_by_source_delete(documents).execute(rows)  # a document may have fewer chunks now

    @_reports_damage
    def delete_documents(self, ids: Sequence[str]) -> None:
        """Remove documents in one commit."""
        if ids:
            with self._undone_if_unreadable():
                self._table.delete(_is_in("document", ids))

    @_reports_damage
    def read_vectors(self, documents: Sequence[str] | None = None) -> tuple[list[str], Embeddings]:
        """Return keys and vectors, in memory."""
        condition = None if documents is None else _is_in("document", documents)
        return _keys_and_vectors(self._read(["key", "vector"], condition))

    @_reports_damage
    def read_texts(self) -> tuple[list[str], list[str]]:
        """Return all keys and texts."""
        rows = self._read(["key", "text"])
        return rows["key"].to_pylist(), rows["text"].to_pylist()

    @_reports_damage
    def matching_keys(self, filter: MetadataFilter) -> set[str]:
        """Return the keys of chunks that have the tags the filter requires."""
        return set(self._read(["key"], _filter_condition(filter))["key"].to_pylist())

    @_reports_damage
    def read_chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return key -> chunk."""
        if not keys:
            return {}
        rows = self._read(["document", "number", "total", "text", "metadata", "digest"], _is_in("key", keys))
        chunks = [Chunk(**{**row, "metadata": parse_json(row["metadata"])}) for row in rows.to_pylist()]
        return {chunk.key: chunk for chunk in chunks}

    def ann_kinds(self, dim: int) -> tuple[str, ...]:
        """Return the kinds for this width: binary and product quantisation take eight dimensions at a time."""
        return ("ivf_rq", "ivf_pq", "ivf_sq", "hnsw") if dim % 8 == 0 else ("ivf_sq", "hnsw")

    @_reports_damage
    def nearest(
        self, vector: Embeddings, count: int, similarity: str, filter: MetadataFilter | None, *, exact: bool
    ) -> tuple[list[str], Embeddings]:
        """Search the index that `optimise` built, or all chunks; those added since are compared exactly."""
        search = self._table.search(vector, vector_column_name="vector").distance_type(_DISTANCES[similarity])
        search = search.limit(count)
        if exact:
            search = search.bypass_vector_index()
        else:  # more partitions only if a filter leaves fewer than `count` rows in the nearest ones
            search = search.minimum_nprobes(_PROBES).maximum_nprobes(0)
            is_product = (self.header() or {}).get("ann") == "ivf_pq"
            search = search.refine_factor(_REFINE_PRODUCT_CODES if is_product else _REFINE)
            search = search.ef(max(_MIN_EF, 2 * _REFINE * count))
        if filter:
            search = search.where(_filter_condition(filter), prefilter=True)
        return _keys_and_vectors(search.select(["key", "vector", "_distance"]).to_arrow())

    @_reports_damage
    def optimise(self, ann: str, similarity: str, *, rebuild: bool = False) -> None:
        """Merge the small files of many batches, index the keys, and index the vectors as `ann` says."""
        from lancedb.index import BTree

        table = self._table
        if not table.count_rows():
            return
        built, has_keys = self._ann(), any(index.columns[0] == "key" for index in table.list_indices())
        with self._undone_if_unreadable(with_indices=True):
            if not has_keys:
                table.create_index("key", config=BTree())
            if built != "none" and ann == "none":
                table.drop_index(_ANN_NAME)
            elif ann != "none" and (rebuild or built != ann):
                table.create_index("vector", config=_ann_config(ann, similarity), name=_ANN_NAME)  # replaces another
        self._compact()

    def _compact(self) -> None:
        """Merge the small files of many batches, and add their rows to the indices."""
        table = self._table
        age = datetime.now() - table.list_versions()[-1]["timestamp"]  # of the version that would be restored
        with self._undone_if_unreadable(with_indices=True):
            table.optimize(cleanup_older_than=age + _KEEP_VERSIONS)

    @_reports_damage
    def stats(self) -> StoreStats:
        """Return size on disk, kind of the approximate index, and what it does not hold."""
        os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # they are not used; without this, it warns
        ann, fragments = self._ann(), self._table.stats()["fragment_stats"]
        # the mean is rounded down
        rows = max(fragments["num_fragments"] * fragments["lengths"]["mean"], self.count_chunks())
        return StoreStats(
            size=sum((self.folder / name).stat().st_size for name in files_below(self.folder)),
            ann=ann,
            unindexed=0 if ann == "none" else self._table.index_stats(_ANN_NAME).num_unindexed_rows,
            deleted=rows - self.count_chunks(),
        )

    def _ann(self) -> str:
        """Kind of the approximate index of the table."""
        types = [index.index_type for index in self._table.list_indices() if index.columns[0] == "vector"]
        return _ANN_TYPES[types[0]] if types else "none"

    def verify_files(self) -> None:
        """Compare the files with their checksums; an index of version 0.1 has none until it is written to."""
        # files of old versions of the table are removed now and then; one that is needed would be missed on reading
        damaged = [
            name for name in damaged_files(self.folder) if not _is_immutable(name) or (self.folder / name).exists()
        ]
        if damaged:
            raise StorageError(f"{self.folder / damaged[0]} is damaged or was changed; create the index again.")

    def close(self) -> None:
        """Release the table."""
        self._opened_table = None
        self._release_table()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold a file lock, and record the checksums of what was written in the end.

        Meanwhile files that change have none, so that a kill leaves no wrong ones; the next writer records them.
        """
        with write_lock(self.folder / _LOCK_FILE, str(self.folder)):
            check_generation(self, self.folder)
            known = self._known_checksums()
            write_checksums(self.folder, known, known)
            yield
            suffix = generation_suffix((self.header() or {}).get("generation", ""))
            table_files, encoder_files = f"{_TABLE_NAME}{suffix}.lance/*", f"encoder{suffix}/*"
            patterns = (*_VERIFIED_FILES, table_files, encoder_files)
            files = files_below(self.folder)
            verified = [name for name in files if any(fnmatchcase(name, pattern) for pattern in patterns)]
            write_checksums(self.folder, verified, self._known_checksums())

    @contextmanager
    def migration_lock(self) -> Iterator[None]:
        """Hold the lock of the one process that moves the index to another encoder."""
        lock = self.folder / _MIGRATION_LOCK_FILE
        with write_lock(lock, f"{self.folder} to move it to another encoder"):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def remove_other_generations(self, *kept: str) -> None:
        """Remove the files of all generations but some; those of a table that a process has open stay."""
        for path in self.folder.iterdir():
            generation = _generation_of(path.name)
            if generation is None or generation in kept:
                continue
            table = self.folder / f"{_TABLE_NAME}{generation_suffix(generation)}.lance"
            if path.is_file():
                path.unlink()
            elif not table.is_dir():
                shutil.rmtree(path)
            else:
                with unused_folder(table) as is_unused:
                    if is_unused:
                        shutil.rmtree(path)

    def _known_checksums(self) -> dict[str, str]:
        """Recorded checksums of the files that never change."""
        return {name: sha256 for name, sha256 in read_checksums(self.folder).items() if _is_immutable(name)}

    @contextmanager
    def _undone_if_unreadable(self, *, first_row: int = 0, with_indices: bool = False) -> Iterator[None]:
        """Undo the commits of a block if the table cannot be read after them.

        LanceDB overlooks it if the list of deleted rows or the end of a file cannot be written, and commits a table
        without it.

        Args:
            first_row: Where the rows begin that the block may write.
            with_indices: Whether it writes indices, too.
        """
        table = self._table
        version = table.version
        try:
            yield
        finally:  # a block that failed may have committed before
            try:
                written = _connect(self.folder).open_table(
                    self._table_name
                )  # the open one remembers what it has written
                _read_some(written, first_row, with_indices)
            except RuntimeError as error:
                table.restore(version)
                reason = " ".join(str(error).split())[:200]
                raise StorageError(
                    f"Cannot write to {self.folder}: what was written cannot be read and was undone ({reason}); check "
                    "the disk and do the same again."
                ) from error

    @property
    def _table_name(self) -> str:
        return f"{_TABLE_NAME}{generation_suffix(self.generation)}"

    @property
    def _table(self) -> Any:
        if self._opened_table is None:
            folder = self.folder / f"{self._table_name}.lance"
            self._mark_table()
            if not folder.is_dir():
                check_generation(self, self.folder)
            table = _connect(self.folder).open_table(self._table_name)
            header, index_id = self.header() or {}, (table.schema.metadata or {}).get(_ID_KEY)
            if index_id not in (None, str(header.get("id")).encode()):  # None: it was made by version 0.1
                raise StorageError(f"{folder} is of another index; create the index again.")
            self._opened_table = table
        return self._opened_table

    def _mark_table(self) -> None:
        """Let other processes know that this one has the table open."""
        self._release_table()
        self._release_table = mark_as_used(self.folder / f"{self._table_name}.lance", self)

    def _read(self, columns: list[str], condition: str | None = None) -> Any:
        search = self._table.search().select(columns)
        return (search.where(condition) if condition else search).limit(None).to_arrow()


def _read_some(table: Any, first_row: int, with_indices: bool) -> None:
    """Read from every file of the rows, and of the indices; raises RuntimeError where that is not possible."""
    table.search().select(["number"]).offset(first_row).limit(None).to_arrow()
    indexed = {index.columns[0] for index in table.list_indices()} if with_indices else ()
    if "key" in indexed:
        table.count_rows("key >= ''")
    if "vector" in indexed:
        dim = table.schema.field("vector").type.list_size
        table.search(np.ones(dim, np.float32), vector_column_name="vector").limit(1).to_arrow()


@contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    """Raise errors of LanceDB, also those of its native code, as StorageError with one sentence."""
    try:
        yield
    except Decoder2VecError:
        raise
    except BaseException as error:
        is_panic = type(error).__name__ in _PANICS
        if not is_panic and not isinstance(error, OSError | RuntimeError | ValueError | KeyError | TypeError):
            raise
        reason = " ".join(str(error).split())[:200]
        if "No space left" in str(error):
            raise StorageError(f"Cannot write to {folder}: no space left on the disk ({reason}).") from error
        if "Input/output error" in str(error):
            raise StorageError(f"{folder} cannot be read or written ({reason}); check the disk.") from error
        raise StorageError(f"The index in {folder} is damaged ({reason}); create it again.") from error


def _is_immutable(name: str) -> bool:
    """Whether a file is written once: those of the table are."""
    return bool(re.match(rf"{_TABLE_NAME}(-\w+)?\.lance/", name)) and not name.endswith(_VERSION_HINT)


def _generation_of(name: str) -> str | None:
    """Return the generation that a file or folder in the folder of an index belongs to; None if it is of all."""
    match = re.fullmatch(rf"(?:{_TABLE_NAME}(?:-(\w+))?\.lance|encoder(?:-(\w+))?|space_map-(\w+)\.safetensors)", name)
    return next(filter(None, match.groups()), "") if match else None


def _connect(folder: Path) -> Any:
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("lancedb", "index") from None
    return lancedb.connect(folder, read_consistency_interval=timedelta(0))  # sees what other processes write


def _ann_config(kind: str, similarity: str) -> Any:
    from lancedb.index import HnswSq, IvfPq, IvfRq, IvfSq

    configs = {"hnsw": HnswSq, "ivf_pq": IvfPq, "ivf_sq": IvfSq, "ivf_rq": IvfRq}
    return configs[kind](distance_type=_DISTANCES[similarity])


def _schema(dim: int) -> Any:
    import pyarrow as pa

    strings = [(name, pa.string()) for name in ("key", "document", "text", "metadata", "digest")]
    integers = [(name, pa.int32()) for name in ("number", "total")]
    return pa.schema([*strings, *integers, ("tags", pa.list_(pa.string())), ("vector", pa.list_(pa.float32(), dim))])


def _to_arrow(chunks: Sequence[Chunk], vectors: Embeddings) -> Any:
    import pyarrow as pa

    flat = np.ascontiguousarray(vectors, np.float32).ravel()
    schema = _schema(vectors.shape[1])
    columns: dict[str, Any] = {
        name: [getattr(chunk, name) for chunk in chunks]
        for name in ("key", "document", "text", "digest", "number", "total")
    }
    columns["metadata"] = [json.dumps(chunk.metadata, ensure_ascii=False) for chunk in chunks]
    columns["tags"] = [chunk.tags() for chunk in chunks]
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _keys_and_vectors(rows: Any) -> tuple[list[str], Embeddings]:
    vectors = rows["vector"].combine_chunks()
    matrix = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), vectors.type.list_size)
    return rows["key"].to_pylist(), matrix


def _is_in(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(map(_sql_string, values))})"


def _filter_condition(filter: MetadataFilter) -> str | None:
    terms = [f"array_has_any(tags, [{', '.join(map(_sql_string, tags))}])" for tags in required_tags(filter)]
    return " AND ".join(terms) or None


def _sql_string(value: str) -> str:
    """Return an SQL string literal; quotes inside the value are escaped, so that it cannot end the literal."""
    return "'" + value.replace("'", "''") + "'"
