"""Which store an index lies in: a folder or a database."""

from __future__ import annotations

from pathlib import Path

from decoder2vec.errors import InputError
from decoder2vec.search.store import Store


def open_store(place: str | Path) -> Store:
    """The store at a folder, or in a database at `postgresql://host/database#name`."""
    if str(place).startswith(("postgresql://", "postgres://")):
        from decoder2vec.search.postgres_store import PostgresStore

        return PostgresStore(str(place))
    if "://" in str(place):
        raise InputError(f"{place} is no place for an index; give a folder or postgresql://host/database#name.")
    from decoder2vec.search.lance_store import LanceStore

    return LanceStore(Path(place))
