"""An index in a PostgreSQL database with the extension pgvector: for people who have a database server.

The place is `postgresql://user@host/database#name`: the two tables are called `name` and `name_header`. Every change is
one transaction.
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
from decoder2vec.search.store import Chunk, Filter, Vectors, wanted_tags
from decoder2vec.storage import cache_root

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "euclidean": "<->"}
_CLASSES = {"cosine": "halfvec_cosine_ops", "dot": "halfvec_ip_ops", "euclidean": "halfvec_l2_ops"}
_WIDEST_INDEX = 4000
"""pgvector indexes vectors of half precision up to this width; wider ones are compared one by one."""
_COLUMNS = "document, number, total, text, metadata, digest"
_SIZE = 2000
"""Rows that are fetched at once."""


class PostgresStore:
    """Two tables of a database."""

    def __init__(self, place: str) -> None:
        address, _, name = place.partition("#")
        self.name = name or "d2v_index"
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", self.name):
            raise InputError(f"An index in a database is called by small letters, digits and _, unlike {name!r}.")
        self._connection = _connect(address)
        where = re.sub(r"//[^/@]*@", "//", address)  # a new password does not make it another index
        self.beside = cache_root() / "indexes" / hashlib.sha256(f"{where}#{self.name}".encode()).hexdigest()[:16]

    def header(self) -> dict[str, Any] | None:
        """The header; None where there is no index yet."""
        if not self._has(f"{self.name}_header"):
            return None
        found = self._run(f"SELECT header FROM {self.name}_header")
        return found[0][0] if found else None

    def create(self, dim: int) -> None:
        """Two empty tables, in one transaction; a table of the same name that is not an index is refused."""
        if self._has(f"{self.name}_header"):  # without a header in it, or this would not be called
            self._run(f"DROP TABLE IF EXISTS {self.name}, {self.name}_header")
        elif self._has(self.name):
            raise InputError(f"The database has a table {self.name} that is not an index; choose another name.")
        with self._connection.transaction():
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
        """In place of the old one."""
        self._run(f"UPDATE {self.name}_header SET header = %s", json.dumps(header))

    def state(self) -> str:
        """The number of the last change, and which index it is of."""
        found = self._run(f"SELECT header->>'id', revision FROM {self.name}_header")[0]
        return f"{found[0]}-{found[1]}"

    def count(self) -> int:
        """How many chunks there are."""
        return int(self._run(f"SELECT count(*) FROM {self.name}")[0][0])

    def documents(self) -> dict[str, str]:
        """The digest of every document."""
        return dict(self._run(f"SELECT document, digest FROM {self.name} WHERE number = 0"))

    def put(self, chunks: Sequence[Chunk], vectors: Vectors, replace: bool) -> None:
        """One transaction."""
        rows = [
            (one.key, one.document, one.number, one.total, one.text, json.dumps(one.metadata), one.digest, one.tags())
            for one in chunks
        ]
        with_vectors = [(*row, vector) for row, vector in zip(rows, np.asarray(vectors, np.float32), strict=True)]
        with _explained(), self._connection.transaction(), self._connection.cursor() as cursor:
            if replace:
                documents = sorted({chunk.document for chunk in chunks})
                cursor.execute(f"DELETE FROM {self.name} WHERE document = ANY(%s)", [documents])
            cursor.executemany(
                f"INSERT INTO {self.name} (key, {_COLUMNS}, tags, embedding) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                with_vectors,
            )
            cursor.execute(f"UPDATE {self.name}_header SET revision = revision + 1")

    def delete(self, documents: Sequence[str]) -> None:
        """One transaction."""
        with self._connection.transaction():
            self._run(f"DELETE FROM {self.name} WHERE document = ANY(%s)", list(documents))
            self._run(f"UPDATE {self.name}_header SET revision = revision + 1")

    def vectors(self) -> tuple[list[str], Vectors]:
        """All of them, in memory."""
        keys: list[str] = []
        matrix = np.empty((self.count(), self._dim()), np.float32)
        with _explained(), self._connection.transaction(), self._connection.cursor("vectors", binary=True) as cursor:
            cursor.itersize = _SIZE
            cursor.execute(f"SELECT key, embedding FROM {self.name}")
            for key, vector in cursor:
                if len(keys) < len(matrix):  # one that another process adds meanwhile is seen next time
                    matrix[len(keys)] = vector.to_numpy()
                    keys.append(key)
        return keys, matrix[: len(keys)]

    def texts(self) -> tuple[list[str], list[str]]:
        """Keys and texts."""
        rows = self._run(f"SELECT key, text FROM {self.name}")
        return [key for key, _ in rows], [text for _, text in rows]

    def keys(self, where: Filter) -> set[str]:
        """Keys of the chunks with the tags that are wanted."""
        terms, tags = _condition(where)
        return {row[0] for row in self._run(f"SELECT key FROM {self.name} WHERE {terms}", *tags)}

    def chunks(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Chunks by key."""
        rows = self._run(f"SELECT {_COLUMNS} FROM {self.name} WHERE key = ANY(%s)", list(keys))
        return {chunk.key: chunk for chunk in (Chunk(*row) for row in rows)}

    def nearest(self, vector: Vectors, count: int, similarity: str, where: Filter | None) -> tuple[list[str], Vectors]:
        """By the index that `tidy` made, where there is one."""
        terms, tags = _condition(where or {})
        half = f"halfvec({self._dim():d})"
        with self._connection.transaction():
            self._run(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, 2 * count)):d}")
            self._run("SET LOCAL hnsw.iterative_scan = strict_order")  # a filter does not leave fewer than wanted
            rows = self._run(
                f"SELECT key, embedding FROM {self.name} WHERE {terms} "
                f"ORDER BY embedding::{half} {_OPERATORS[similarity]} %s::vector::{half} LIMIT {count:d}",
                *tags,
                np.asarray(vector, np.float32),
            )
        matrix = np.array([found.to_numpy() for _, found in rows], np.float32).reshape(len(rows), self._dim())
        return [key for key, _ in rows], matrix

    def tidy(self, approximate: str | None) -> None:
        """Index the vectors if they are many."""
        if approximate and self._dim() <= _WIDEST_INDEX:
            self._run(
                f"CREATE INDEX IF NOT EXISTS {self.name}_nearest ON {self.name} "
                f"USING hnsw ((embedding::halfvec({self._dim():d})) {_CLASSES[approximate]})"
            )
        self._run(f"ANALYZE {self.name}")

    def close(self) -> None:
        """Leave the database."""
        self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A lock of the database, which ends with the connection."""
        number = int(hashlib.sha256(self.name.encode()).hexdigest()[:15], 16)
        if not self._run("SELECT pg_try_advisory_lock(%s)", number)[0][0]:
            raise StorageError(f"Another process is writing to the index {self.name}; wait until it has ended.")
        try:
            yield
        finally:
            self._run("SELECT pg_advisory_unlock(%s)", number)

    def _has(self, table: str) -> bool:
        return bool(self._run("SELECT to_regclass(%s) IS NOT NULL", table)[0][0])

    def _dim(self) -> int:
        header = self.header()
        return int(header["dim"]) if header else 0

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with _explained():
            cursor = self._connection.execute(statement, values or None, binary=True)
            return cursor.fetchall() if cursor.description else []


def _condition(where: Filter) -> tuple[str, list[list[str]]]:
    tags = wanted_tags(where)
    return " AND ".join(["tags && %s::text[]"] * len(tags)) or "true", tags


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever the database refuses becomes one sentence."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise StorageError(f"The database says: {' '.join(str(error).split())[:300]}") from None


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
            f"The database cannot be used ({reason}); does the server run, and does it have the extension pgvector?"
        ) from None
