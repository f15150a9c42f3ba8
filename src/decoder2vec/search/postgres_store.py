"""Chunk store in a PostgreSQL database with the extension pgvector, for those who run a database server.

The location is `postgresql://user@host/database#name`; the two tables are `name` and `name_header`. Every change is one
transaction. After a move to another encoder the header in `name_header` names the generation of the chunks, such as
1a2b3c4d, which are in `name_1a2b3c4d`; `name_1a2b3c4d_header` has the number of their last change.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from decoder2vec.errors import InputError, MissingExtraError, StorageError
from decoder2vec.search.store import Chunk, Embeddings, MetadataFilter, StoreStats, check_generation, required_tags
from decoder2vec.storage import cache_root

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "euclidean": "<->"}
_OPERATOR_CLASSES = {"cosine": "halfvec_cosine_ops", "dot": "halfvec_ip_ops", "euclidean": "halfvec_l2_ops"}
_MAX_INDEXED_DIM = 4000
"""pgvector indexes half-precision vectors up to this width."""
_MIN_EF = 200
"""Candidates of a search in a graph, at least; pgvector's own default is 40."""
_MAX_EF = 1000
"""The most that pgvector allows."""
_NODE_BYTES = 800
"""Memory of a vector while its graph is built, besides the vector in half precision; 715 were measured."""
_MAX_BUILD_MEGABYTES = 2048
"""Memory for building a graph, at most, unless the server allows more."""
_COLUMNS = "document, number, total, text, metadata, digest"
_FETCH_ROWS = 2000
"""Rows fetched at once."""
_IDLE = 0
"""psycopg's status of a connection outside a transaction."""


class PostgresStore:
    """A `ChunkStore` in two tables of a database."""

    def __init__(self, location: str) -> None:
        address, _, name = location.partition("#")
        self.name = name or "d2v_index"
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", self.name):
            raise InputError(f"An index in a database is named with lower-case letters, digits and _, not {name!r}.")
        self._address = address
        self.generation = ""
        self._open_connection = _connect(address)
        self._marked: tuple[Any, str] | None = None
        """The connection, and the table of chunks that it has marked as used."""
        self._holds_lock = False
        self._counted = ("", 0)
        """The revision of the chunks when they were last counted, and their number."""
        server = re.sub(r"//[^/@]*@", "//", address)  # without user and password, which may change
        digest = hashlib.sha256(f"{server}#{self.name}".encode()).hexdigest()[:16]
        self.local_folder = cache_root() / "indexes" / digest

    @property
    def _connection(self) -> Any:
        """The connection; a new one if it was closed, such as by a restart of the database.

        Raises:
            StorageError: It was closed while this process was writing: the lock is lost with it.
        """
        if self._open_connection.closed:
            if self._holds_lock:
                raise StorageError("The connection to the database was lost; run the same command again to go on.")
            self._open_connection = _connect(self._address)
        if self._marked is None or self._marked[0] is not self._open_connection or self._marked[1] != self._chunks:
            self._mark_table()
        return self._open_connection

    @property
    def _chunks(self) -> str:
        return f"{self.name}_{self.generation}" if self.generation else self.name

    @property
    def _revisions(self) -> str:
        return f"{self._chunks}_header"

    def _mark_table(self) -> None:
        """Let other processes know, by a shared lock, that this one has the table of chunks open."""
        connection, chunks = self._open_connection, self._chunks
        if self._marked and self._marked[0] is connection:
            _execute(connection, "SELECT pg_advisory_unlock_shared(%s)", [_lock_id(f"{self._marked[1]} is used")])
        self._marked = (connection, chunks)
        _execute(connection, "SELECT pg_advisory_lock_shared(%s)", [_lock_id(f"{chunks} is used")])

    def header(self) -> dict[str, Any] | None:
        """Return the header, or None if there is no index."""
        if not self._has_table(f"{self.name}_header"):
            return None
        rows = self._run(f"SELECT header FROM {self.name}_header")
        return rows[0][0] if rows else None

    def check_new(self) -> None:
        """Raise InputError if there is an index, or a table of that name that is not one."""
        if self.header() is not None:
            raise InputError(f"There is already an index called {self.name} in the database; use `Index.open`.")
        if self._has_table(self.name) and not self._has_table(f"{self.name}_header"):
            raise InputError(f"The database has a table {self.name} that is not an index; choose another name.")

    def create(self, index_id: str, dim: int) -> None:
        """Create two empty tables in one transaction, which keeps them together: they need no `index_id`."""
        with _storage_errors(), self._connection.transaction():
            if self._has_table(self._revisions):  # it holds no header, as `check_new` has found
                self._run(f"DROP TABLE IF EXISTS {self._chunks}, {self._revisions}")
            self._run(
                f"CREATE TABLE {self._chunks} (key text PRIMARY KEY, document text NOT NULL, number integer NOT NULL, "
                "total integer NOT NULL, text text NOT NULL, metadata jsonb NOT NULL, tags text[] NOT NULL, "
                f"digest text NOT NULL, embedding vector({dim:d}) NOT NULL)"
            )
            self._run(f"CREATE INDEX ON {self._chunks} (document)")
            self._run(f"CREATE INDEX ON {self._chunks} USING gin (tags)")
            self._run(f"CREATE TABLE {self._revisions} (header jsonb, revision bigint NOT NULL)")
            self._run(f"INSERT INTO {self._revisions} VALUES (NULL, 0)")

    def is_created(self) -> bool:
        """Return whether `create` has created the tables."""
        return self._has_table(self._chunks)

    def write_header(self, header: dict[str, Any]) -> None:
        """Replace the header."""
        self._run(f"UPDATE {self.name}_header SET header = %s", json.dumps(header))

    def revision(self) -> str:
        """Return the id of the index and the number of its last change."""
        id = (self.header() or {}).get("id")
        revision = self._run(f"SELECT revision FROM {self._revisions}")[0][0]
        return "-".join(filter(None, (str(id), self.generation, str(revision))))

    def count_chunks(self) -> int:
        """Return the number of chunks; they are counted, which reads the whole table, once after every change."""
        revision = self.revision()
        if self._counted[0] != revision:
            self._counted = (revision, int(self._run(f"SELECT count(*) FROM {self._chunks}")[0][0]))
        return self._counted[1]

    def document_digests(self) -> dict[str, str]:
        """Return document id -> digest."""
        return dict(self._run(f"SELECT document, digest FROM {self._chunks} WHERE number = 0"))

    def write_chunks(self, chunks: Sequence[Chunk], vectors: Embeddings, replace: bool) -> None:
        """Add or replace the chunks of whole documents in one transaction."""
        rows = [
            (
                chunk.key,
                chunk.document,
                chunk.number,
                chunk.total,
                chunk.text,
                json.dumps(chunk.metadata),
                chunk.digest,
                chunk.tags(),
                vector,
            )
            for chunk, vector in zip(chunks, np.asarray(vectors, np.float32), strict=True)
        ]
        with _storage_errors(), self._connection.transaction(), self._connection.cursor() as cursor:
            if replace:
                documents = sorted({chunk.document for chunk in chunks})
                cursor.execute(f"DELETE FROM {self._chunks} WHERE document = ANY(%s)", [documents])
            cursor.executemany(
                f"INSERT INTO {self._chunks} (key, {_COLUMNS}, tags, embedding) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                rows,
            )
            cursor.execute(f"UPDATE {self._revisions} SET revision = revision + 1")

    def delete_documents(self, ids: Sequence[str]) -> None:
        """Remove documents in one transaction."""
        with _storage_errors(), self._connection.transaction():
            self._run(f"DELETE FROM {self._chunks} WHERE document = ANY(%s)", list(ids))
            self._run(f"UPDATE {self._revisions} SET revision = revision + 1")

    def read_vectors(self, documents: Sequence[str] | None = None) -> tuple[list[str], Embeddings]:
        """Return keys and vectors, in memory."""
        if documents is not None:
            rows = self._run(f"SELECT key, embedding FROM {self._chunks} WHERE document = ANY(%s)", list(documents))
            return self._keys_and_vectors(rows)
        keys: list[str] = []
        matrix = np.empty((self.count_chunks(), self._dim()), np.float32)
        with (
            _storage_errors(),
            self._connection.transaction(),
            self._connection.cursor("vectors", binary=True) as cursor,
        ):
            cursor.itersize = _FETCH_ROWS
            cursor.execute(f"SELECT key, embedding FROM {self._chunks}")
            for key, vector in cursor:
                if len(keys) < len(matrix):  # rows that another process adds meanwhile are read next time
                    matrix[len(keys)] = vector.to_numpy()
                    keys.append(key)
        return keys, matrix[: len(keys)]

    def read_texts(self) -> tuple[list[str], list[str]]:
        """Return all keys and texts."""
        rows = self._run(f"SELECT key, text FROM {self._chunks}")
        return [key for key, _ in rows], [text for _, text in rows]

    def matching_keys(self, filter: MetadataFilter) -> set[str]:
        """Return the keys of chunks that have the tags the filter requires."""
        condition, tags = _filter_condition(filter)
        return {key for (key,) in self._run(f"SELECT key FROM {self._chunks} WHERE {condition}", *tags)}

    def read_chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return key -> chunk."""
        rows = self._run(f"SELECT {_COLUMNS} FROM {self._chunks} WHERE key = ANY(%s)", list(keys))
        return {chunk.key: chunk for chunk in (Chunk(*row) for row in rows)}

    def ann_kinds(self, dim: int) -> tuple[str, ...]:
        """Return the kinds for this width."""
        return ("hnsw",) if dim <= _MAX_INDEXED_DIM else ()

    def nearest(
        self, vector: Embeddings, count: int, similarity: str, filter: MetadataFilter | None, *, exact: bool
    ) -> tuple[list[str], Embeddings]:
        """Search the index that `optimise` built, if there is one, or all chunks."""
        condition, tags = _filter_condition(filter or {})
        # the index is of half-precision vectors: an order by the vectors themselves does not use it
        vectors = "vector" if exact else f"halfvec({self._dim():d})"
        with _storage_errors(), self._connection.transaction():
            self._run(f"SET LOCAL hnsw.ef_search = {min(_MAX_EF, max(_MIN_EF, 2 * count)):d}")
            self._run("SET LOCAL hnsw.iterative_scan = strict_order")  # else a filter leaves fewer than `count` rows
            rows = self._run(
                f"SELECT key, embedding FROM {self._chunks} WHERE {condition} "
                f"ORDER BY embedding::{vectors} {_OPERATORS[similarity]} %s::vector::{vectors} LIMIT {count:d}",
                *tags,
                np.asarray(vector, np.float32),
            )
        return self._keys_and_vectors(rows)

    def optimise(self, ann: str, similarity: str, *, rebuild: bool = False) -> None:
        """Update the planner's statistics, and index the vectors (HNSW) unless `ann` is "none".

        pgvector keeps its graph up to date, so that nothing is gained by a new one.
        """
        with _storage_errors(), self._connection.transaction():
            if ann == "none":
                self._run(f"DROP INDEX IF EXISTS {self._chunks}_nearest")
            else:
                self._allow_memory()
                self._run(
                    f"CREATE INDEX IF NOT EXISTS {self._chunks}_nearest ON {self._chunks} "
                    f"USING hnsw ((embedding::halfvec({self._dim():d})) {_OPERATOR_CLASSES[similarity]})"
                )
        self._run(f"ANALYZE {self._chunks}")

    def _allow_memory(self) -> None:
        """Let this transaction build the whole graph in memory, if the server's setting is too low for it.

        One process then builds it: several would need shared memory, of which a container has little by default.
        """
        megabytes = self.count_chunks() * (2 * self._dim() + _NODE_BYTES) // 2**20 + 1
        megabytes = min(megabytes, _MAX_BUILD_MEGABYTES)
        setting = "SELECT setting::bigint / 1024 FROM pg_settings WHERE name = 'maintenance_work_mem'"
        if megabytes > self._run(setting)[0][0]:
            self._run(f"SET LOCAL maintenance_work_mem = '{megabytes:d}MB'")
            self._run("SET LOCAL max_parallel_maintenance_workers = 0")

    def stats(self) -> StoreStats:
        """Return size on disk, kind of the approximate index, and what it does not hold: in a database, nothing."""
        tables = (self._chunks, f"{self.name}_header")
        return StoreStats(
            size=sum(int(self._run("SELECT pg_total_relation_size(%s::regclass)", table)[0][0]) for table in tables),
            ann="hnsw" if self._has_table(f"{self._chunks}_nearest") else "none",
            unindexed=0,
            deleted=int(self._run("SELECT pg_stat_get_dead_tuples(%s::regclass)", self._chunks)[0][0]),
        )

    def verify_files(self) -> None:
        """Do nothing: a database checks its own files."""

    def close(self) -> None:
        """Close the connection."""
        self._open_connection.close()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold an advisory lock of the database, which is released when the connection ends."""
        with self._lock(self.name, f"writing to the index {self.name}"):
            check_generation(self, f"The index {self.name}")
            yield

    @contextmanager
    def migration_lock(self) -> Iterator[None]:
        """Hold the lock of the one process that moves the index to another encoder."""
        with self._lock(f"{self.name} migrates", f"moving the index {self.name} to another encoder"):
            yield

    @contextmanager
    def _lock(self, name: str, activity: str) -> Iterator[None]:
        if not self._run("SELECT pg_try_advisory_lock(%s)", _lock_id(name))[0][0]:
            raise StorageError(f"Another process is {activity}; wait until it has ended.")
        was_held, self._holds_lock = self._holds_lock, True
        try:
            yield
        finally:
            self._holds_lock = was_held
            if not self._open_connection.closed:
                self._run("SELECT pg_advisory_unlock(%s)", _lock_id(name))

    def remove_other_generations(self, *kept: str) -> None:
        """Drop the tables of all generations but some; one that a process has open stays."""
        pattern = f"^{self.name}(_[0-9a-f]{{8}})?$"
        for (table,) in self._run(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND tablename ~ %s", pattern
        ):
            generation = table.removeprefix(self.name).removeprefix("_")
            # a table of that name is of this index only if there is its table of revisions, too
            if generation in kept or (generation and not self._has_table(f"{table}_header")):
                continue
            with _storage_errors(), self._connection.transaction():
                if self._run("SELECT pg_try_advisory_xact_lock(%s)", _lock_id(f"{table} is used"))[0][0]:
                    self._run(f"DROP TABLE {table}" + (f", {table}_header" if generation else ""))
        for folder in self.local_folder.glob("encoder*") if self.local_folder.is_dir() else ():
            if folder.name.removeprefix("encoder").removeprefix("-") not in kept:
                shutil.rmtree(folder)

    def _keys_and_vectors(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[str], Embeddings]:
        matrix = np.array([embedding.to_numpy() for _, embedding in rows], np.float32).reshape(len(rows), self._dim())
        return [key for key, _ in rows], matrix

    def _has_table(self, table: str) -> bool:
        return bool(self._run("SELECT to_regclass(%s) IS NOT NULL", table)[0][0])

    def _dim(self) -> int:
        statement = "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'embedding'"
        rows = self._run(statement, self._chunks)
        return int(rows[0][0]) if rows else 0

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self._connection
        in_transaction = int(connection.info.transaction_status) != _IDLE
        try:
            return _execute(connection, statement, values)
        except StorageError:
            # the database was restarted since the last statement; within a transaction, what was done is lost
            if in_transaction or not connection.closed:
                if not in_transaction and not self._has_table(self._chunks):
                    check_generation(self, f"The index {self.name}")
                raise
            return _execute(self._connection, statement, values)


def _lock_id(name: str) -> int:
    """Return the number of an advisory lock."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)


def _execute(connection: Any, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    with _storage_errors():
        cursor = connection.execute(statement, values or None, binary=True)
        return cursor.fetchall() if cursor.description else []


def _filter_condition(filter: MetadataFilter) -> tuple[str, list[list[str]]]:
    tags = required_tags(filter)
    return " AND ".join(["tags && %s::text[]"] * len(tags)) or "true", tags


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Raise errors of the database as StorageError with one sentence."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise StorageError(f"The database reports: {' '.join(str(error).split())[:300]}") from None


def _connect(address: str) -> Any:
    try:
        import psycopg
        from pgvector.psycopg import register_vector
    except ImportError:
        raise MissingExtraError("psycopg and pgvector", "postgres") from None
    try:
        connection = psycopg.connect(address, autocommit=True)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        return connection
    except psycopg.Error as error:
        reason = " ".join(str(error).split())[:200]
        raise StorageError(
            f"The database cannot be used ({reason}); check that the server runs and has the extension pgvector."
        ) from None
