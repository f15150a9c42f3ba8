"""Build the server's ASGI application and run it until it is stopped; running requests are then finished."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from decoder2vec.errors import InputError
from decoder2vec.package import __version__
from decoder2vec.serving import describe_routes, document_routes, openai_routes, page_routes, search_routes
from decoder2vec.serving.api_errors import handle_exception
from decoder2vec.serving.middleware import AdmissionMiddleware, APIKeys
from decoder2vec.serving.service import ServerConfig, Service
from decoder2vec.serving.slow_clients import HeaderTimeoutProtocol

__all__ = ["ServerConfig", "bind", "build_server", "create_app", "is_loopback", "serve"]

_SHUTDOWN_SECONDS = 30
"""Time that running requests have to finish when the server stops."""
_MAX_CONNECTIONS = 1_000
"""Concurrent connections; more are rejected."""


def create_app(config: ServerConfig, api_keys: Iterable[str] = (), *, local_only: bool = True) -> FastAPI:
    """Build the ASGI application that serves an encoder; run it with any ASGI server, in one process.

    Args:
        config: The encoder, and the index, sweep, limits and cache to serve with it.
        api_keys: Keys of which clients must send one as `Authorization: Bearer KEY`; without any, no key is needed.
        local_only: Without API keys, accept only requests whose Host header names this machine.

    Returns:
        A FastAPI application with the routes /v1/embeddings, /v1/models, /search, /match, /documents, /rerank,
        /v1/rerank, /compare, /describe, /sweep, /health, /metrics and a page at /.

    Raises:
        InputError: An API key, a limit or the index is wrong.
        DataFileError: The sweep file cannot be read.

    Example:
        >>> from fastapi.testclient import TestClient
        >>> import decoder2vec as d2v
        >>> encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu")
        >>> with TestClient(d2v.create_app(d2v.ServerConfig(encoder, name="tiny")), "http://localhost") as client:
        ...     response = client.post("/v1/embeddings", json={"model": "tiny", "input": "A cat sleeps."})
        >>> len(response.json()["data"][0]["embedding"]) == encoder.dim
        True
    """
    keys = APIKeys(api_keys)
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # FastAPI's own documentation pages would load scripts from other hosts
    app = FastAPI(title="decoder2vec", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    for routes in (openai_routes, search_routes, describe_routes, document_routes, page_routes):
        app.include_router(routes.router)
    app.mount("/page", page_routes.page_files())
    # FastAPI has handlers of its own for these two; all other exceptions reach the middleware
    for exception in (RequestValidationError, HTTPException):
        app.add_exception_handler(exception, handle_exception)
    app.add_middleware(
        AdmissionMiddleware, api_keys=keys, limits=config.limits, metrics=service.metrics, local_only=local_only
    )
    return app


def serve(
    load_config: Callable[[], ServerConfig],
    api_keys: Iterable[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    notify: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve an encoder until the process is interrupted or terminated.

    Args:
        load_config: Returns what to serve. It is called after the port is bound, so that a port in use is reported
            before a model is loaded.
        api_keys: Keys of which clients must send one; without any, no key is needed.
        host: Address to listen on; the default accepts connections from this machine only.
        port: Port to listen on; 0 chooses a free one.
        notify: Called with a sentence when the server has started and stopped, and if anyone could use it.

    Raises:
        InputError: The address cannot be bound, or the config is wrong.
    """
    keys = list(api_keys)
    APIKeys(keys)  # an unusable key is reported before a model is loaded
    with bind(host, port) as bound_socket:
        config = load_config()
        app = create_app(config, keys, local_only=is_loopback(host))
        if not is_loopback(host) and not keys:
            notify(f"anyone who can reach {host} can use the server; set --api-key to require a key")
        bound_socket.listen(_MAX_CONNECTIONS)  # accept connections before the address is printed
        url_host = f"[{host}]" if ":" in host else host
        notify(f"{config.name} at http://{url_host}:{bound_socket.getsockname()[1]} (Ctrl-C stops it)")
        with suppress(KeyboardInterrupt):
            build_server(app).run(sockets=[bound_socket])
        notify("stopped")


def is_loopback(host: str) -> bool:
    """Whether an address accepts connections from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; port 0 chooses a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError):
        raise InputError(f"{host}:{port} is not an address of this machine; choose another with --host.") from None
    try:
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
    except OSError as error:
        bound_socket.close()
        raise InputError(f"{host}:{port} cannot be used ({error.strerror}); choose another with --port.") from None
    return bound_socket


def build_server(app: FastAPI) -> uvicorn.Server:
    """Return a uvicorn server for an application. It has no access log, since a URL may contain a text."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=HeaderTimeoutProtocol,
            ws="none",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            limit_concurrency=_MAX_CONNECTIONS,
            server_header=False,
        )
    )
