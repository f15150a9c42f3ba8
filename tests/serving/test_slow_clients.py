"""Clients that send the headers of a request slowly, or want another protocol."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from decoder2vec.serving import slow_clients

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def connection(serving, monkeypatch):
    """A socket that is connected to a server which waits half a second for headers."""
    monkeypatch.setattr(slow_clients, "HEADER_SECONDS", 0.5)
    with serving() as url, socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 30) as connected:
        yield connected


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: local"], ids=["nothing", "half"])
def test_client_without_headers_is_disconnected(connection, sent):
    connection.sendall(sent)
    assert connection.recv(1000) == b""


def answer(connection):
    """The answer to a request: its headers, and a body of JSON."""
    received = b""
    while not received.endswith(b"}"):
        received += connection.recv(10_000)
    return received


def test_second_request_of_a_connection_has_the_limit_too(connection):
    connection.sendall(REQUEST)
    assert b"200 OK" in answer(connection)
    connection.sendall(REQUEST[:20])
    assert connection.recv(1000) == b""


def test_request_in_time_is_answered(connection):
    connection.sendall(REQUEST[:20])
    time.sleep(0.1)
    connection.sendall(REQUEST[20:])
    assert b"200 OK" in answer(connection)
    connection.sendall(REQUEST)
    assert b"200 OK" in answer(connection)


def test_websocket_upgrade_is_answered_as_a_request(url):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    assert httpx.get(f"{url}/health", headers=headers).status_code == 200
    assert httpx.get(f"{url}/nothing", headers=headers).status_code == 404
