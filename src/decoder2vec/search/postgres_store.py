"""Chunk store in a PostgreSQL database with the extension pgvector, for those who run a database server.

The location is `postgresql://user@host/database#name`; the two tables are `name` and `name_header`. Every change is one
transaction.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from decoder2vec.errors import InputError, MissingExtraError, StorageError
from decoder2vec.search.store import Chunk, Embeddings, MetadataFilter, StoreStats, required_tags
from decoder2vec.storage import cache_root

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "euclidean": "<->"}
_OPERATOR_CLASSES = {"cosine": "halfvec_cosine_ops", "dot": "halfvec_ip_ops", "euclidean": "halfvec_l2_ops"}
_MAX_INDEXED_DIM = 4000
"""pgvector indexes half-precision vectors up to this width."""
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
        self._open_connection = _connect(address)
        self._holds_lock = False
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
        return self._open_connection

    def header(self) -> dict[str, Any] | None:
        """Return the header, or None if there is no index."""
        if not self._has_table(f"{self.name}_header"):
            return None
        rows = self._run(f"SELECT header FROM {self.name}_header")
        return rows[0][0] if rows else None

    def check_new(self) -> None:
        """Raise InputError if there is an index, or a table of that name that is not one."""
        if self.header() is not None:
            raise InputError(f"There is already an index called {self.name} in the database; open it instead.")
        if self._has_table(self.name) and not self._has_table(f"{self.name}_header"):
            raise InputError(f"The database has a table {self.name} that is not an index; choose another name.")

    def create(self, index_id: str, dim: int) -> None:
        """Create two empty tables in one transaction, which keeps them together: they need no `index_id`."""
        with _storage_errors(), self._connection.transaction():
            if self._has_table(f"{self.name}_header"):  # it holds no header, as `check_new` has found
                self._run(f"DROP TABLE IF EXISTS {self.name}, {self.name}_header")
            self._run(
                f"CREATE TABLE {self.name} (key text PRIMARY KEY, document text NOT NULL, number integer NOT NULL, "
                "total integer NOT NULL, text text NOT NULL, metadata jsonb NOT NULL, tags text[] NOT NULL, "
                f"digest text NOT NULL, embedding vector({dim:d}) NOT NULL)"
            )
            self._run(f"CREATE INDEX ON {self.name} (document)")
            self._run(f"CREATE INDEX ON {self.name} USING gin (tags)")
            self._run(f"CREATE TABLE {self.name}_header (header jsonb, revision bigint NOT NULL)")
            self._run(f"INSERT INTO {self.name}_header VALUES (NULL, 0)")

    def write_header(self, header: dict[str, Any]) -> None:
        """Replace the header."""
        self._run(f"UPDATE {self.name}_header SET header = %s", json.dumps(header))

    def revision(self) -> str:
        """Return the id of the index and the number of its last change."""
        id, revision = self._run(f"SELECT header->>'id', revision FROM {self.name}_header")[0]
        return f"{id}-{revision}"

    def count_chunks(self) -> int:
        """Return the number of chunks."""
        return int(self._run(f"SELECT count(*) FROM {self.name}")[0][0])

    def document_digests(self) -> dict[str, str]:
        """Return document id -> digest."""
        return dict(self._run(f"SELECT document, digest FROM {self.name} WHERE number = 0"))

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
                cursor.execute(f"DELETE FROM {self.name} WHERE document = ANY(%s)", [documents])
            cursor.executemany(
                f"INSERT INTO {self.name} (key, {_COLUMNS}, tags, embedding) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                rows,
            )
            cursor.execute(f"UPDATE {self.name}_header SET revision = revision + 1")

    def delete_documents(self, ids: Sequence[str]) -> None:
        """Remove documents in one transaction."""
        with _storage_errors(), self._connection.transaction():
            self._run(f"DELETE FROM {self.name} WHERE document = ANY(%s)", list(ids))
            self._run(f"UPDATE {self.name}_header SET revision = revision + 1")

    def read_vectors(self, documents: Sequence[str] | None = None) -> tuple[list[str], Embeddings]:
        """Return keys and vectors, in memory."""
        if documents is not None:
            rows = self._run(f"SELECT key, embedding FROM {self.name} WHERE document = ANY(%s)", list(documents))
            return self._keys_and_vectors(rows)
        keys: list[str] = []
        matrix = np.empty((self.count_chunks(), self._dim()), np.float32)
        with (
            _storage_errors(),
            self._connection.transaction(),
            self._connection.cursor("vectors", binary=True) as cursor,
        ):
            cursor.itersize = _FETCH_ROWS
            cursor.execute(f"SELECT key, embedding FROM {self.name}")
            for key, vector in cursor:
                if len(keys) < len(matrix):  # rows that another process adds meanwhile are read next time
                    matrix[len(keys)] = vector.to_numpy()
                    keys.append(key)
        return keys, matrix[: len(keys)]

    def read_texts(self) -> tuple[list[str], list[str]]:
        """Return all keys and texts."""
        rows = self._run(f"SELECT key, text FROM {self.name}")
        return [key for key, _ in rows], [text for _, text in rows]

    def matching_keys(self, filter: MetadataFilter) -> set[str]:
        """Return the keys of chunks that have the tags the filter requires."""
        condition, tags = _filter_condition(filter)
        return {key for (key,) in self._run(f"SELECT key FROM {self.name} WHERE {condition}", *tags)}

    def read_chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return key -> chunk."""
        rows = self._run(f"SELECT {_COLUMNS} FROM {self.name} WHERE key = ANY(%s)", list(keys))
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
            self._run(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, 2 * count)):d}")
            self._run("SET LOCAL hnsw.iterative_scan = strict_order")  # else a filter leaves fewer than `count` rows
            rows = self._run(
                f"SELECT key, embedding FROM {self.name} WHERE {condition} "
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
                self._run(f"DROP INDEX IF EXISTS {self.name}_nearest")
            else:
                self._run(
                    f"CREATE INDEX IF NOT EXISTS {self.name}_nearest ON {self.name} "
                    f"USING hnsw ((embedding::halfvec({self._dim():d})) {_OPERATOR_CLASSES[similarity]})"
                )
        self._run(f"ANALYZE {self.name}")

    def stats(self) -> StoreStats:
        """Return size on disk, kind of the approximate index, and what it does not hold: in a database, nothing."""
        tables = (self.name, f"{self.name}_header")
        return StoreStats(
            size=sum(int(self._run("SELECT pg_total_relation_size(%s::regclass)", table)[0][0]) for table in tables),
            ann="hnsw" if self._has_table(f"{self.name}_nearest") else "none",
            unindexed=0,
            deleted=int(self._run("SELECT pg_stat_get_dead_tuples(%s::regclass)", self.name)[0][0]),
        )

    def verify_files(self) -> None:
        """Do nothing: a database checks its own files."""

    def close(self) -> None:
        """Close the connection."""
        self._open_connection.close()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold an advisory lock of the database, which is released when the connection ends."""
        lock_id = int(hashlib.sha256(self.name.encode()).hexdigest()[:15], 16)
        if not self._run("SELECT pg_try_advisory_lock(%s)", lock_id)[0][0]:
            raise StorageError(f"Another process is writing to the index {self.name}; wait until it has ended.")
        self._holds_lock = True
        try:
            yield
        finally:
            self._holds_lock = False
            if not self._open_connection.closed:
                self._run("SELECT pg_advisory_unlock(%s)", lock_id)

    def _keys_and_vectors(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[str], Embeddings]:
        matrix = np.array([embedding.to_numpy() for _, embedding in rows], np.float32).reshape(len(rows), self._dim())
        return [key for key, _ in rows], matrix

    def _has_table(self, table: str) -> bool:
        return bool(self._run("SELECT to_regclass(%s) IS NOT NULL", table)[0][0])

    def _dim(self) -> int:
        header = self.header()
        return int(header["dim"]) if header else 0

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self._connection
        in_transaction = int(connection.info.transaction_status) != _IDLE
        try:
            return _execute(connection, statement, values)
        except StorageError:
            # the database was restarted since the last statement; within a transaction, what was done is lost
            if in_transaction or not connection.closed:
                raise
            return _execute(self._connection, statement, values)


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
