"""The routes put together behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from decoder2vec.errors import Decoder2VecError
from decoder2vec.serving import embeddings, lookups, pages
from decoder2vec.serving.gate import Gate
from decoder2vec.serving.keys import Keys
from decoder2vec.serving.problems import answer_problem
from decoder2vec.serving.service import Offer, Service
from decoder2vec.version import __version__


def create_app(offer: Offer, keys: Iterable[str] = (), *, local: bool = True) -> FastAPI:
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
