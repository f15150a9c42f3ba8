"""What a client that has hung up was waiting for is not computed any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from decoder2vec.serving.api_errors import APIError

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
        raise APIError(499, "The client has hung up.", code="client_gone")
    finally:
        watcher.cancel()
        if not task.done():
            client.leave()
            task.cancel()


async def _hangs_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Vectors = NDArray[np.float32]
Read = Callable[[Any, list[str]], Vectors]
"""(key, texts) -> one vector for each text. Texts with the same key can be read together."""

_LINGER = 0.003
"""Seconds that an idle model waits for others after the first text has come: clients rarely come alone."""
_PATIENCE = 0.25
"""Part of a batch's time that the model then waits for the clients it has answered."""
_FIRST_RATE = 300.0
"""Tokens a second, before any were measured."""


@dataclass(eq=False)
class _Work:
    """What one request asks for."""

    key: Hashable
    texts: Sequence[str]
    sizes: Sequence[int]
    future: Future[Vectors] = field(default_factory=Future)
    rows: dict[int, Vectors] = field(default_factory=dict)
    begun: int = 0
    """How many texts have been given to the model."""

    def left(self) -> int:
        return sum(self.sizes[self.begun :])

    def put(self, place: int, vector: Vectors) -> None:
        self.rows[place] = vector
        if len(self.rows) == len(self.texts):
            with suppress(InvalidStateError):  # the client went at this very moment
                self.future.set_result(np.stack([self.rows[row] for row in range(len(self.texts))]))

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass
class EncodingStats:
    """What the queue has done, for the metrics."""

    batches: int = 0
    texts: int = 0
    tokens: int = 0
    dropped: int = 0
    """Texts that were not read since nobody waited for them any more."""
    seconds: float = 0.0


class Batcher:
    """Takes texts from any thread and gives futures of their vectors."""

    def __init__(self, read: Read, budget: int, most_waiting: int) -> None:
        self._read, self._budget, self._most_waiting = read, budget, most_waiting
        self._queue: deque[_Work] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._rate = _FIRST_RATE
        self._expected, self._wait_until = 0, 0.0
        self.stats = EncodingStats()
        self.waiting = 0
        """Tokens in the queue."""
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def check_token_count(self, tokens: int) -> None:
        """Refuse what does not fit into the queue and say when it may; one that stands alone always fits."""
        if self.waiting and self.waiting + tokens > self._most_waiting:
            wait = min(60.0, self.waiting / self._rate)
            raise APIError(429, "Too many texts are waiting; come back later.", code="overloaded", wait=wait)

    def submit(
        self, key: Hashable, texts: Sequence[str], sizes: Sequence[int], *, admitted: bool = False
    ) -> Future[Vectors]:
        """A future of [n, dim] vectors; to cancel it takes the texts out of the queue.

        `sizes` are the tokens of each text. `admitted` work belongs to a request that was let in before.
        """
        work = _Work(key, texts, sizes)
        if client := CURRENT.get():
            client.waits_for(work.future)
        with self._changed:
            if self._closing:
                raise APIError(503, "The server is stopping.", code="stopping", wait=5)
            if not admitted:
                self.check_token_count(sum(sizes))
            self._queue.append(work)
            self.waiting += sum(sizes)
            self._changed.notify()
        return work.future

    def close(self) -> None:
        """Finish the batch that runs, fail what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while self._gather():
            with self._changed:
                chosen = self._draw()
            if chosen:
                started = time.perf_counter()
                self._run(chosen)
                self._note(chosen, time.perf_counter() - started)
            del chosen  # the vectors of a batch are not kept until the next one
        for work in self._queue:
            work.fail(APIError(503, "The server is stopping.", code="stopping", wait=5))

    def _gather(self) -> bool:
        """Wait for texts, and a little for those that will follow at once; False if the queue is closing."""
        with self._changed:
            idle = not self._queue
            self._changed.wait_for(lambda: self._queue or self._closing)
            patience = self._wait_until - time.perf_counter()
            if patience > 0:
                self._changed.wait_for(self._all_are_back, patience)
            elif idle:
                self._changed.wait_for(lambda: self._closing, _LINGER)
            return not self._closing

    def _all_are_back(self) -> bool:
        return self._closing or len(self._queue) >= self._expected or self.waiting >= self._budget

    def _draw(self) -> list[tuple[_Work, int]]:
        """The next batch: one text of each request in turn, of one key, as long as the budget lasts."""
        chosen: list[tuple[_Work, int]] = []
        others: list[_Work] = []
        room = self._budget
        while self._queue:
            work = self._queue.popleft()
            if work.future.done():
                self.waiting -= work.left()
                self.stats.dropped += len(work.texts) - work.begun
                continue
            size = work.sizes[work.begun]
            if chosen and (work.key != chosen[0][0].key or size > room):
                others.append(work)
                continue
            chosen.append((work, work.begun))
            work.begun += 1
            room -= size
            self.waiting -= size
            if work.begun < len(work.texts):
                self._queue.append(work)
        self._queue.extend(others)
        return chosen

    def _run(self, chosen: list[tuple[_Work, int]]) -> None:
        """Read a batch. If that fails, each request is read alone, so that only the one at fault fails."""
        try:
            vectors = self._read(chosen[0][0].key, [work.texts[place] for work, place in chosen])
        except Exception as error:
            works = dict.fromkeys(work for work, _ in chosen)
            if len(works) == 1:
                chosen[0][0].fail(error)
                return
            for work in works:
                self._run([(one, place) for one, place in chosen if one is work])
            return
        with self._changed:
            self._expected = len({*self._queue, *(work for work, _ in chosen)})
        for (work, place), vector in zip(chosen, vectors, strict=True):
            work.put(place, vector)

    def _note(self, chosen: list[tuple[_Work, int]], seconds: float) -> None:
        self._wait_until = time.perf_counter() + _PATIENCE * seconds
        tokens = sum(work.sizes[place] for work, place in chosen)
        self._rate += 0.2 * (tokens / max(seconds, 1e-6) - self._rate)
        self.stats.batches += 1
        self.stats.texts += len(chosen)
        self.stats.tokens += tokens
        self.stats.seconds += seconds
