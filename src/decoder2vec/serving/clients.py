"""What a client that has hung up was waiting for is not computed any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

from starlette.requests import Request

from decoder2vec.serving.problems import Problem

T = TypeVar("T")


class Client:
    """One request's works in the queue, to be dropped together."""

    def __init__(self) -> None:
        self._works: list[Future[Any]] = []
        self._gone = False
        self._lock = threading.Lock()

    def waits_for(self, work: Future[Any]) -> None:
        """Drop this work too when the client goes."""
        with self._lock:
            self._works = [known for known in self._works if not known.done()] + [work]
            gone = self._gone
        if gone:
            work.cancel()

    def leave(self) -> None:
        """Drop all works, and those that a thread may still begin."""
        with self._lock:
            self._gone = True
            works, self._works = self._works, []
        for work in works:
            work.cancel()


CURRENT: ContextVar[Client | None] = ContextVar("client", default=None)
"""The client that is being served, in whichever thread."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work; if the client hangs up before, the work ends and so does what it had in the queue."""
    client = Client()
    CURRENT.set(client)
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hangs_up(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Problem(499, "The client has hung up.", code="client_gone")
    finally:
        watcher.cancel()
        if not task.done():
            client.leave()
            task.cancel()


async def _hangs_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
