"""An index in a folder: LanceDB, embedded. Every change is one commit, so a kill leaves the last one standing.

- `index.json`: which embedding space, how documents are cut; written last when an index is made
- `chunks.lance/`: chunks and vectors
- `encoder/`: the encoder, without its model
- `lexical/`: the words of the chunks, made again when they change
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
from decoder2vec.search.store import Chunk, Filter, Vectors, wanted_tags
from decoder2vec.storage import atomic_file

_HEADER = "index.json"
_TABLE = "chunks"
_OWN = {_HEADER, f"{_TABLE}.lance", "encoder", "lexical", "pair_head.safetensors", ".writing"}
_KEPT = timedelta(minutes=10)
"""Versions older than this are removed: a search that has begun still finds its own."""
_DISTANCES = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}


class LanceStore:
    """A folder with a LanceDB table in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.beside = folder
        self._opened: Any = None

    def header(self) -> dict[str, Any] | None:
        """The header; None where there is no index yet."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _HEADER).read_text(encoding="utf-8"))
            return found
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.folder / _HEADER} cannot be read ({error}); make the index again.") from None

    def create(self, dim: int) -> None:
        """An empty table; a folder that holds something else is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        strange = [
            path.name for path in self.folder.iterdir() if path.name not in _OWN and not path.name.startswith(".")
        ]
        if strange:
            raise InputError(f"{self.folder} is not empty and not an index ({strange[0]}); choose another folder.")
        database = _connect(self.folder)
        database.drop_table(_TABLE, ignore_missing=True)
        self._opened = database.create_table(_TABLE, schema=_schema(dim))

    def write_header(self, header: dict[str, Any]) -> None:
        """All at once."""
        with atomic_file(self.folder / _HEADER) as temporary:
            temporary.write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")

    def state(self) -> str:
        """The number of the last commit, and which index it is of."""
        return f"{(self.header() or {}).get('id')}-{self._table.version}"

    def count(self) -> int:
        """How many chunks there are."""
        return int(self._table.count_rows())

    def documents(self) -> dict[str, str]:
        """The digest of every document."""
        rows = self._read(["document", "digest"])
        return dict(zip(rows["document"].to_pylist(), rows["digest"].to_pylist(), strict=True))

    def put(self, chunks: Sequence[Chunk], vectors: Vectors, replace: bool) -> None:
        """One commit."""
        rows = _rows(chunks, vectors)
        if not replace:
            self._table.add(rows)
            return
        documents = _one_of("document", sorted({chunk.document for chunk in chunks}))
        merge = self._table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        merge.when_not_matched_by_source_delete(documents).execute(rows)  # a document may have become shorter

    def delete(self, documents: Sequence[str]) -> None:
        """One commit."""
        if documents:
            self._table.delete(_one_of("document", documents))

    def vectors(self) -> tuple[list[str], Vectors]:
        """All of them, in memory."""
        return _unpack(self._read(["key", "vector"]))

    def texts(self) -> tuple[list[str], list[str]]:
        """Keys and texts."""
        rows = self._read(["key", "text"])
        return rows["key"].to_pylist(), rows["text"].to_pylist()

    def keys(self, where: Filter) -> set[str]:
        """Keys of the chunks with the tags that are wanted."""
        return set(self._read(["key"], _condition(where))["key"].to_pylist())

    def chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Chunks by key."""
        if not keys:
            return {}
        rows = self._read(["document", "number", "total", "text", "metadata", "digest"], _one_of("key", keys))
        found = [Chunk(**{**row, "metadata": json.loads(row["metadata"])}) for row in rows.to_pylist()]
        return {chunk.key: chunk for chunk in found}

    def nearest(self, vector: Vectors, count: int, similarity: str, where: Filter | None) -> tuple[list[str], Vectors]:
        """By the index that `tidy` made; chunks that came later are compared one by one."""
        search = self._table.search(vector, vector_column_name="vector").distance_type(_DISTANCES[similarity])
        search = search.refine_factor(4).limit(count)
        if where:
            search = search.where(_condition(where), prefilter=True)
        return _unpack(search.select(["key", "vector", "_distance"]).to_arrow())

    def tidy(self, approximate: str | None) -> None:
        """Join the small files of many batches; index the keys, and the vectors if they are many."""
        from lancedb.index import BTree, HnswSq

        table = self._table
        if not table.count_rows():
            return
        made = {index.columns[0] for index in table.list_indices()}
        if "key" not in made:
            table.create_index("key", config=BTree())
        if approximate and "vector" not in made:
            table.create_index("vector", config=HnswSq(distance_type=_DISTANCES[approximate]))
        table.optimize(cleanup_older_than=_KEPT)

    def close(self) -> None:
        """Let go of the table."""
        self._opened = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A lock that ends with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".writing").open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StorageError(f"Another process is writing to {self.folder}; wait until it has ended.") from None
            yield

    @property
    def _table(self) -> Any:
        if self._opened is None:
            try:
                self._opened = _connect(self.folder).open_table(_TABLE)
            except (ValueError, OSError, RuntimeError) as error:
                raise StorageError(f"The index in {self.folder} is damaged ({error}); make it again.") from None
        return self._opened

    def _read(self, columns: list[str], condition: str | None = None) -> Any:
        search = self._table.search().select(columns)
        return (search.where(condition) if condition else search).limit(None).to_arrow()


def _connect(folder: Path) -> Any:
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("lancedb", "index") from None
    return lancedb.connect(folder, read_consistency_interval=timedelta(0))  # what another process wrote is seen


def _schema(dim: int) -> Any:
    import pyarrow as pa

    words = [(name, pa.string()) for name in ("key", "document", "text", "metadata", "digest")]
    numbers = [(name, pa.int32()) for name in ("number", "total")]
    return pa.schema([*words, *numbers, ("tags", pa.list_(pa.string())), ("vector", pa.list_(pa.float32(), dim))])


def _rows(chunks: Sequence[Chunk], vectors: Vectors) -> Any:
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


def _unpack(rows: Any) -> tuple[list[str], Vectors]:
    vectors = rows["vector"].combine_chunks()
    matrix = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), vectors.type.list_size)
    return rows["key"].to_pylist(), matrix


def _one_of(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(map(_quoted, values))})"


def _condition(where: Filter) -> str | None:
    terms = [f"array_has_any(tags, [{', '.join(map(_quoted, tags))}])" for tags in wanted_tags(where)]
    return " AND ".join(terms) or None


def _quoted(value: str) -> str:
    """A value as SQL says it: whatever it holds, it stays a value."""
    return "'" + value.replace("'", "''") + "'"
