"""mteb as the tests use it: offline, and with a stand-in for pytrec_eval where that cannot be built."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture(scope="session")
def mteb():
    """The package; what needs it is skipped where it is not installed."""
    if importlib.util.find_spec("pytrec_eval") is None:
        sys.path.append(str(STAND_IN))
    return pytest.importorskip("mteb", reason="mteb is not installed; `make setup` installs it")


@pytest.fixture(scope="session")
def real_pytrec(mteb):
    """Skips what needs mteb's retrieval metrics where they cannot be computed."""
    import pytrec_eval

    if Path(pytrec_eval.__file__).parent == STAND_IN:
        pytest.skip("pytrec_eval is not installed, so mteb's retrieval metrics cannot be computed")


@pytest.fixture
def offline(monkeypatch):
    """Any attempt to reach another machine fails the test."""

    def refuse(self, address):
        raise AssertionError(f"reached out to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
