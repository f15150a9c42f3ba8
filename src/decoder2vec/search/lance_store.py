"""Chunk store in a folder: embedded LanceDB. Every change is one commit, so a kill leaves the last commit intact.

- `index.json`: header of the index (embedding space, chunking, fusion); written last when an index is created
- `chunks.lance/`: chunks and vectors
- `encoder/`: description of the encoder, without its model
- `lexical/`: BM25 index of the chunks, rebuilt when they change
- `pair_head.safetensors`: a reranker learned for this index
- `sources.json`: the folders that documents came from
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.errors import InputError, MissingExtraError, StorageError
from decoder2vec.search.store import Chunk, Embeddings, MetadataFilter, required_tags
from decoder2vec.storage import atomic_file

_HEADER_FILE = "index.json"
_TABLE_NAME = "chunks"
_LOCK_FILE = ".writing"
_INDEX_FILES = {
    _HEADER_FILE,
    f"{_TABLE_NAME}.lance",
    "encoder",
    "lexical",
    "pair_head.safetensors",
    "sources.json",
    _LOCK_FILE,
}
_KEEP_VERSIONS = timedelta(minutes=10)
"""Older versions of the table are removed; a running search still finds the version it began with."""
_DISTANCES = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}


class LanceStore:
    """A `ChunkStore` in a folder with a LanceDB table."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.local_folder = folder
        self._opened_table: Any = None

    def header(self) -> dict[str, Any] | None:
        """Return the header, or None if there is no index."""
        try:
            header: dict[str, Any] = json.loads((self.folder / _HEADER_FILE).read_text(encoding="utf-8"))
            return header
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            file = self.folder / _HEADER_FILE
            raise StorageError(f"{file} cannot be read ({error}); create the index again.") from None

    def create(self, dim: int) -> None:
        """Create an empty table; raises InputError if the folder holds other files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        foreign = [
            path.name
            for path in self.folder.iterdir()
            if path.name not in _INDEX_FILES and not path.name.startswith(".")
        ]
        if foreign:
            raise InputError(f"{self.folder} is not empty and not an index ({foreign[0]}); choose another folder.")
        database = _connect(self.folder)
        database.drop_table(_TABLE_NAME, ignore_missing=True)
        self._opened_table = database.create_table(_TABLE_NAME, schema=_schema(dim))

    def write_header(self, header: dict[str, Any]) -> None:
        """Write the header atomically."""
        with atomic_file(self.folder / _HEADER_FILE) as temporary:
            temporary.write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")

    def revision(self) -> str:
        """Return the id of the index and the number of its last commit."""
        return f"{(self.header() or {}).get('id')}-{self._table.version}"

    def count_chunks(self) -> int:
        """Return the number of chunks."""
        return int(self._table.count_rows())

    def document_digests(self) -> dict[str, str]:
        """Return document id -> digest."""
        rows = self._read(["document", "digest"])
        return dict(zip(rows["document"].to_pylist(), rows["digest"].to_pylist(), strict=True))

    def write_chunks(self, chunks: Sequence[Chunk], vectors: Embeddings, replace: bool) -> None:
        """Add or replace the chunks of whole documents in one commit."""
        rows = _to_arrow(chunks, vectors)
        if not replace:
            self._table.add(rows)
            return
        documents = _is_in("document", sorted({chunk.document for chunk in chunks}))
        merge = self._table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        merge.when_not_matched_by_source_delete(documents).execute(rows)  # a document may have fewer chunks now

    def delete_documents(self, ids: Sequence[str]) -> None:
        """Remove documents in one commit."""
        if ids:
            self._table.delete(_is_in("document", ids))

    def read_vectors(self, documents: Sequence[str] | None = None) -> tuple[list[str], Embeddings]:
        """Return keys and vectors, in memory."""
        condition = None if documents is None else _is_in("document", documents)
        return _keys_and_vectors(self._read(["key", "vector"], condition))

    def read_texts(self) -> tuple[list[str], list[str]]:
        """Return all keys and texts."""
        rows = self._read(["key", "text"])
        return rows["key"].to_pylist(), rows["text"].to_pylist()

    def matching_keys(self, filter: MetadataFilter) -> set[str]:
        """Return the keys of chunks that have the tags the filter requires."""
        return set(self._read(["key"], _filter_condition(filter))["key"].to_pylist())

    def read_chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return key -> chunk."""
        if not keys:
            return {}
        rows = self._read(["document", "number", "total", "text", "metadata", "digest"], _is_in("key", keys))
        chunks = [Chunk(**{**row, "metadata": json.loads(row["metadata"])}) for row in rows.to_pylist()]
        return {chunk.key: chunk for chunk in chunks}

    def nearest(
        self, vector: Embeddings, count: int, similarity: str, filter: MetadataFilter | None
    ) -> tuple[list[str], Embeddings]:
        """Search the index that `optimise` built; chunks added since are compared exactly."""
        search = self._table.search(vector, vector_column_name="vector").distance_type(_DISTANCES[similarity])
        search = search.refine_factor(4).limit(count)
        if filter:
            search = search.where(_filter_condition(filter), prefilter=True)
        return _keys_and_vectors(search.select(["key", "vector", "_distance"]).to_arrow())

    def optimise(self, approximate_for: str | None) -> None:
        """Merge the small files of many batches, index the keys and, for a similarity, the vectors (HNSW)."""
        from lancedb.index import BTree, HnswSq

        table = self._table
        if not table.count_rows():
            return
        indexed = {index.columns[0] for index in table.list_indices()}
        if "key" not in indexed:
            table.create_index("key", config=BTree())
        if approximate_for and "vector" not in indexed:
            table.create_index("vector", config=HnswSq(distance_type=_DISTANCES[approximate_for]))
        table.optimize(cleanup_older_than=_KEEP_VERSIONS)

    def close(self) -> None:
        """Release the table."""
        self._opened_table = None

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold a file lock, which the system releases when the process ends, even if it is killed."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK_FILE).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StorageError(f"Another process is writing to {self.folder}; wait until it has ended.") from None
            yield

    @property
    def _table(self) -> Any:
        if self._opened_table is None:
            try:
                self._opened_table = _connect(self.folder).open_table(_TABLE_NAME)
            except (ValueError, OSError, RuntimeError) as error:
                raise StorageError(f"The index in {self.folder} is damaged ({error}); create it again.") from None
        return self._opened_table

    def _read(self, columns: list[str], condition: str | None = None) -> Any:
        search = self._table.search().select(columns)
        return (search.where(condition) if condition else search).limit(None).to_arrow()


def _connect(folder: Path) -> Any:
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("lancedb", "index") from None
    return lancedb.connect(folder, read_consistency_interval=timedelta(0))  # sees what other processes write


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
