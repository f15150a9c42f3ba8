"""A server at an address, until it is told to stop; then what was begun is finished."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from decoder2vec.errors import Decoder2VecError, InputError
from decoder2vec.serving import embeddings, lookups, pages
from decoder2vec.serving.api_errors import answer_problem
from decoder2vec.serving.middleware import Gate, Keys
from decoder2vec.serving.service import ServerConfig, Service
from decoder2vec.version import __version__

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


def create_app(offer: ServerConfig, keys: Iterable[str] = (), *, local: bool = True) -> FastAPI:
    """An ASGI application. `local`: it is to be asked from this machine only, unless there are keys."""
    service = Service(offer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # the pages with documentation that FastAPI brings would load scripts from elsewhere
    app = FastAPI(title="decoder2vec", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    for router in (embeddings.router, lookups.router, pages.router):
        app.include_router(router)
    app.mount("/page", pages.page_files())
    for kind in (RequestValidationError, HTTPException, Decoder2VecError):
        app.add_exception_handler(kind, answer_problem)
    app.add_middleware(Gate, keys=Keys(keys), limits=offer.limits, metrics=service.metrics, local=local)
    return app
