"""An encoder in a separate process: a text that crashes the process is refused, like any other bad text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import EncodingStats
from decoder2vec.errors import EncoderError

_MAX_CRASHES = 2
"""Crashes on a single text after which it is refused: one crash may have another cause."""
_PROBE = "A text."


class IsolatedEncoder:
    """Encodes texts for a `PartEmbedder`, which finds the text that crashes the process by halves.

    Args:
        ray: What `start_ray` returned.
        start: Starts a worker of Ray, an actor with `encode_texts`.

    Raises:
        RayError: A worker crashes on every text, so that no single text is the cause.
    """

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray, self._start = ray, start
        self._worker: Any = None
        self._dim = 0
        self.stats = EncodingStats()

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        self._running_worker()
        return self._dim

    def encode(self, texts: list[str], **_: Any) -> NDArray[np.float32]:
        """Vectors of texts, with the prompt of the worker's plan.

        Raises:
            EncoderError: A text is refused, or the worker crashes on the texts.
        """
        errors = self._ray.exceptions
        for _attempt in range(_MAX_CRASHES if len(texts) == 1 else 1):
            worker = self._running_worker()
            try:
                vectors, n_tokens, refusal = self._ray.get(worker.encode_texts.remote(texts))
            except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
                self._worker = None
                continue
            if refusal:
                raise EncoderError(refusal)
            self.stats.tokens += n_tokens
            return np.asarray(vectors, np.float32)
        raise EncoderError(f"the worker process crashed {_MAX_CRASHES} times on this text, or ran out of memory.")

    def _running_worker(self) -> Any:
        if self._worker is None:
            worker = self._start()
            self._dim = self._ray.get(worker.encode_texts.remote([_PROBE]))[0].shape[1]
            self._worker = worker
        return self._worker

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._ray.kill(self._worker)
            self._worker = None
