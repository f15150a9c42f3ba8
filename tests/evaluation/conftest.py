"""Fixtures for mteb: offline, and with our stand-in for pytrec_eval if that cannot be built."""

from __future__ import annotations

import socket

import pytest

from decoder2vec.evaluation.trec_metrics import provide_pytrec_eval


@pytest.fixture(scope="session")
def mteb():
    """The mteb package; tests that need it are skipped if it is not installed."""
    provide_pytrec_eval()
    return pytest.importorskip("mteb", reason="mteb is not installed; `make setup` installs it")


@pytest.fixture
def offline(monkeypatch):
    """Fail the test on any network connection."""

    def refuse(self, address):
        raise AssertionError(f"connected to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
