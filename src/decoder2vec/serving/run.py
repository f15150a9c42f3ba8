"""A server at an address, until it is told to stop; then what was begun is finished."""

from __future__ import annotations

import ipaddress
import socket

import uvicorn
from fastapi import FastAPI

from decoder2vec.errors import InputError

_GRACE = 30
"""Seconds that requests have to finish in when the server stops."""
_CONNECTIONS = 1_000
"""At once; more are turned away."""


def is_local(host: str) -> bool:
    """Does an address lead to this machine only?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """The address, taken before the model is loaded; port 0 takes any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError):
        raise InputError(f"{host}:{port} is no address of this machine; choose another with --host.") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(f"{host}:{port} cannot be taken ({error.strerror}); choose another with --port.") from None
    return bound


def server_of(app: FastAPI) -> uvicorn.Server:
    """A server to run. There is no log of requests: an address may hold what was asked."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE,
            limit_concurrency=_CONNECTIONS,
            server_header=False,
        )
    )
