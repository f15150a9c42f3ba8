"""Everything a server holds while it runs, and what its routes do with it."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from decoder2vec.backbone.machine import token_budget
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.search.index import Index
from decoder2vec.serving.batcher import Batcher
from decoder2vec.serving.clients import unless_gone
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.metrics import Metrics
from decoder2vec.serving.models import Models, Served
from decoder2vec.serving.problems import Problem
from decoder2vec.serving.queued import QueuedEncoder
from decoder2vec.serving.vectors import Cache, Vectors

T = TypeVar("T")

_THREADS = 8
"""In which searches and matches run; most of their time they wait for the model."""
_SHORT = 20_000
"""Characters whose tokens are counted on the spot; more are counted in a thread, so that others are not held up."""
_BUDGET = 2_048
"""Tokens of a batch, where the machine is not known."""


@dataclass(frozen=True)
class Offer:
    """What shall be served."""

    encoder: Any
    """Anything with `encode`."""
    name: str = "encoder"
    """What it is called in `model`."""
    index: str | Path | None = None
    """Folder or database to search."""
    sweep: Path | None = None
    """A sweep.json to show."""
    limits: Limits = field(default_factory=Limits)
    cache_megabytes: float = 64


class Service:
    """The model behind its queue, and what is done with it."""

    def __init__(self, offer: Offer) -> None:
        self.limits = offer.limits
        self.sweep = _sweep(offer.sweep) if offer.sweep else None
        self.models = Models(offer.name, offer.encoder)
        budget = offer.limits.batch_tokens or _budget(offer.encoder)
        batcher = Batcher(self.models.read, budget, offer.limits.waiting_tokens)
        self.vectors = Vectors(batcher, Cache(offer.cache_megabytes))
        self.metrics = Metrics(self.vectors)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._jobs = 0
        try:
            self._index = Index.open(offer.index, self.queued(self.models[None])) if offer.index else None
            if self._index:
                self._index.rank(["warm"], 1)  # what the first search would have to read is read now
        except BaseException:
            self.close()
            raise

    @property
    def index(self) -> Index:
        """The index that is searched."""
        if self._index is None:
            raise Problem(404, "This server has no index; start it with --index.", code="no_index")
        return self._index

    def queued(self, served: Served) -> QueuedEncoder:
        """The encoder as something that may be asked from any thread."""
        return QueuedEncoder(served, self.vectors)

    async def sizes(self, request: Request, served: Served, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as the model reads them, if a request may ask for so many."""
        self.limits.check_texts(len(texts))
        if sum(map(len, texts)) > _SHORT:
            counts = await self._in_thread(lambda: served.count(texts))
        else:
            counts = served.count(texts)
        self.limits.check_tokens(sum(counts))
        request.state.take_tokens(sum(counts))
        return served.count.read(counts)

    async def in_thread(self, request: Request, served: Served, texts: Sequence[str], job: Callable[[], T]) -> T:
        """The result of a job that reads these texts, and perhaps parts of them again, through the queue."""

        async def admitted() -> T:
            self.vectors.batcher.check_room(sum(await self.sizes(request, served, texts)))
            return await self._in_thread(job)

        return await unless_gone(request, admitted())

    def close(self) -> None:
        """End what runs."""
        self.vectors.batcher.close()
        self._threads.shutdown(cancel_futures=True)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        if self._jobs >= self.limits.jobs:
            raise Problem(429, "Too many requests are under way; come back later.", code="overloaded", wait=1)
        self._jobs += 1
        try:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, job)
        finally:
            self._jobs -= 1


def service_of(request: Request) -> Service:
    """The service that a route belongs to."""
    service: Service = request.app.state.service
    return service


def _budget(encoder: Any) -> int:
    return token_budget(encoder.device, encoder.backbone.dim) if isinstance(encoder, Encoder) else _BUDGET


def _sweep(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        json.loads(content)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(f"{file} is not JSON; give the sweep.json that `d2v sweep` wrote.") from None
    return content
