"""Fixtures for mteb: offline, and with a stub of pytrec_eval if that cannot be built."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

STUBS = Path(__file__).parent / "stubs"


@pytest.fixture(scope="session")
def mteb():
    """The mteb package; tests that need it are skipped if it is not installed."""
    if importlib.util.find_spec("pytrec_eval") is None:
        sys.path.append(str(STUBS))
    return pytest.importorskip("mteb", reason="mteb is not installed; `make setup` installs it")


@pytest.fixture(scope="session")
def real_pytrec(mteb):
    """Skip tests that need mteb's retrieval metrics if pytrec_eval is not installed."""
    import pytrec_eval

    if Path(pytrec_eval.__file__).parent == STUBS:
        pytest.skip("pytrec_eval is not installed, so mteb's retrieval metrics cannot be computed")


@pytest.fixture
def offline(monkeypatch):
    """Fail the test on any network connection."""

    def refuse(self, address):
        raise AssertionError(f"connected to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
