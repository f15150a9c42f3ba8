"""The queue in front of the model: batches mix texts of all requests, and a client that disconnects cancels its own."""

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

from decoder2vec.errors import EncoderError
from decoder2vec.serving.api_errors import APIError

T = TypeVar("T")
Vectors = NDArray[np.float32]
EncodeBatch = Callable[[Any, list[Any]], Vectors | list[Vectors]]
"""(key, texts) -> a vector of each text. Texts with the same key can be encoded in one batch; of a reranker a "text" is
a pair of query and document, and its "vector" a score; a document that is read in chunks has one for each chunk."""

_IDLE_WAIT = 0.003
"""Seconds that an idle model waits for more texts after the first one: requests often come together."""
_RETURN_WAIT = 0.25
"""Fraction of a batch's duration that the model then waits for the clients of that batch to send more."""
_INITIAL_RATE = 300.0
"""Tokens per second, before any were measured."""


class CancellationScope:
    """The queued work of one request, which is cancelled together."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []
        self._cancelled = False
        self._lock = threading.Lock()

    def add(self, future: Future[Any]) -> None:
        """Cancel this future with the request, at once if the request is cancelled already."""
        with self._lock:
            self._futures = [pending for pending in self._futures if not pending.done()] + [future]
            cancelled = self._cancelled
        if cancelled:
            future.cancel()

    def cancel(self) -> None:
        """Cancel all futures, and those that a thread of the request will still add."""
        with self._lock:
            self._cancelled = True
            futures, self._futures = self._futures, []
        for future in futures:
            future.cancel()


CURRENT_SCOPE: ContextVar[CancellationScope | None] = ContextVar("cancellation_scope", default=None)
"""The scope of the request that is being served, in its coroutine and its threads."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; if the client disconnects first, cancel it and its texts in the queue."""
    scope = CancellationScope()
    CURRENT_SCOPE.set(scope)
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise APIError(499, "The client disconnected.", code="client_gone")
    finally:
        watcher.cancel()
        if not task.done():
            scope.cancel()
            task.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(eq=False)
class _Submission:
    """The texts of one call of `submit`."""

    key: Hashable
    texts: Sequence[Any]
    token_counts: Sequence[int]
    future: Future[Vectors] = field(default_factory=Future)
    vectors: dict[int, Vectors] = field(default_factory=dict)
    n_started: int = 0
    """How many texts were put into a batch."""

    def remaining_tokens(self) -> int:
        return sum(self.token_counts[self.n_started :])

    def set_vector(self, row: int, vector: Vectors) -> None:
        self.vectors[row] = vector
        if len(self.vectors) == len(self.texts):
            with suppress(InvalidStateError):  # cancelled at this very moment
                self.future.set_result(np.stack([self.vectors[row] for row in range(len(self.texts))]))

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


_Batch = list[tuple[_Submission, int]]
"""Texts of one batch, each as its submission and its row there."""


@dataclass
class BatcherStats:
    """Counters of everything encoded so far."""

    batches: int = 0
    texts: int = 0
    tokens: int = 0
    dropped: int = 0
    """Texts that were not encoded because their client disconnected."""
    seconds: float = 0.0


class Batcher:
    """Takes texts from any thread, encodes them in batches in one thread, and returns futures of their vectors.

    Args:
        encode: Encodes a batch; only the thread of the batcher calls it.
        max_batch_tokens: Tokens of a batch; a longer text is encoded alone.
        max_waiting_tokens: Tokens in the queue from which on further texts get a 429.
    """

    def __init__(self, encode: EncodeBatch, max_batch_tokens: int, max_waiting_tokens: int) -> None:
        self._encode, self._max_batch_tokens, self._max_waiting_tokens = encode, max_batch_tokens, max_waiting_tokens
        self._queue: deque[_Submission] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._tokens_per_second = _INITIAL_RATE
        self._expected_submissions, self._wait_until = 0, 0.0
        self.stats = BatcherStats()
        self.waiting_tokens = 0
        """Tokens in the queue."""
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def check_capacity(self, tokens: int) -> None:
        """Raise a 429 with the time to wait if these tokens do not fit into the queue; an empty queue takes any."""
        if self.waiting_tokens and self.waiting_tokens + tokens > self._max_waiting_tokens:
            retry_after = min(60.0, self.waiting_tokens / self._tokens_per_second)
            message = "Too many texts are waiting; try again later."
            raise APIError(429, message, code="overloaded", retry_after=retry_after)

    def submit(
        self, key: Hashable, texts: Sequence[Any], token_counts: Sequence[int], *, admitted: bool = False
    ) -> Future[Vectors]:
        """Queue texts; cancelling the returned future removes them from the queue.

        Args:
            key: Only texts with the same key share a batch.
            texts: One or more texts, or pairs of texts.
            token_counts: Tokens of each text.
            admitted: Skip the capacity check, for work of a request that passed it before.

        Returns:
            A future of [texts, dim] vectors.

        Raises:
            APIError: The queue is full (429) or the server is stopping (503).
        """
        submission = _Submission(key, texts, token_counts)
        if scope := CURRENT_SCOPE.get():
            scope.add(submission.future)
        with self._changed:
            if self._closing:
                raise _stopping()
            if not admitted:
                self.check_capacity(sum(token_counts))
            self._queue.append(submission)
            self.waiting_tokens += sum(token_counts)
            self._changed.notify()
        return submission.future

    def close(self) -> None:
        """Finish the running batch, fail the texts in the queue, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait_for_texts():
            with self._changed:
                batch = self._next_batch()
            if batch:
                started = time.perf_counter()
                self._encode_batch(batch)
                self._update_stats(batch, time.perf_counter() - started)
            del batch  # do not keep its vectors until the next one
        for submission in self._queue:
            submission.fail(_stopping())

    def _wait_for_texts(self) -> bool:
        """Wait for texts, and shortly for those that follow at once; return False if the batcher is closing."""
        with self._changed:
            idle = not self._queue
            self._changed.wait_for(lambda: self._queue or self._closing)
            remaining_wait = self._wait_until - time.perf_counter()
            if remaining_wait > 0:
                self._changed.wait_for(self._is_batch_ready, remaining_wait)
            elif idle:
                self._changed.wait_for(lambda: self._closing, _IDLE_WAIT)
            return not self._closing

    def _is_batch_ready(self) -> bool:
        """Whether all clients of the last batch are back or a batch is full."""
        all_returned = len(self._queue) >= self._expected_submissions
        return self._closing or all_returned or self.waiting_tokens >= self._max_batch_tokens

    def _next_batch(self) -> _Batch:
        """Take the next batch from the queue: texts with one key, one of each submission in turn, up to the budget."""
        batch: _Batch = []
        skipped: list[_Submission] = []
        free_tokens = self._max_batch_tokens
        while self._queue:
            submission = self._queue.popleft()
            if submission.future.done():
                self.waiting_tokens -= submission.remaining_tokens()
                self.stats.dropped += len(submission.texts) - submission.n_started
                continue
            tokens = submission.token_counts[submission.n_started]
            if batch and (submission.key != batch[0][0].key or tokens > free_tokens):
                skipped.append(submission)
                continue
            batch.append((submission, submission.n_started))
            submission.n_started += 1
            free_tokens -= tokens
            self.waiting_tokens -= tokens
            if submission.n_started < len(submission.texts):
                self._queue.append(submission)
        self._queue.extend(skipped)
        return batch

    def _encode_batch(self, batch: _Batch) -> None:
        """Encode a batch. If that fails, encode each submission alone, so that only the faulty one fails."""
        try:
            vectors = self._encode(batch[0][0].key, [submission.texts[row] for submission, row in batch])
            if len(vectors) != len(batch):
                raise EncoderError(f"The encoder returned {len(vectors)} vectors for {len(batch)} texts.")
        except Exception as error:
            submissions = dict.fromkeys(submission for submission, _ in batch)
            if len(submissions) == 1:
                batch[0][0].fail(error)
                return
            for submission in submissions:
                self._encode_batch([(other, row) for other, row in batch if other is submission])
            return
        with self._changed:
            self._expected_submissions = len({*self._queue, *(submission for submission, _ in batch)})
        for (submission, row), vector in zip(batch, vectors, strict=True):
            submission.set_vector(row, vector)

    def _update_stats(self, batch: _Batch, seconds: float) -> None:
        self._wait_until = time.perf_counter() + _RETURN_WAIT * seconds
        tokens = sum(submission.token_counts[row] for submission, row in batch)
        self._tokens_per_second += 0.2 * (tokens / max(seconds, 1e-6) - self._tokens_per_second)
        self.stats.batches += 1
        self.stats.texts += len(batch)
        self.stats.tokens += tokens
        self.stats.seconds += seconds


def _stopping() -> APIError:
    return APIError(503, "The server is stopping.", code="stopping", retry_after=5)
