"""An encoder in a process of its own: a text that kills the process is refused, as any other bad text is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import EncodingStats
from decoder2vec.errors import EncoderError

_DEATHS = 2
"""Processes that must die of a single text before it is refused: one may have died of something else."""
_PROBE = "A text."


class IsolatedEncoder:
    """Encodes texts for a `PartEmbedder`, which finds the text to blame by halves.

    Args:
        ray: What `start_ray` returned.
        start: Starts a worker of Ray, an actor with `encode_texts`.

    Raises:
        RayError: A worker dies of any text, so that none is to blame.
    """

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray, self._start = ray, start
        self._worker: Any = None
        self._dim = 0
        self.stats = EncodingStats()

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        self._living_worker()
        return self._dim

    def encode(self, texts: list[str], **_: Any) -> NDArray[np.float32]:
        """Vectors of texts, with the prompt of the worker's plan.

        Raises:
            EncoderError: A text is refused, or the worker dies of the texts.
        """
        errors = self._ray.exceptions
        for _attempt in range(_DEATHS if len(texts) == 1 else 1):
            worker = self._living_worker()
            try:
                vectors, n_tokens, refusal = self._ray.get(worker.encode_texts.remote(texts))
            except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
                self._worker = None
                continue
            if refusal:
                raise EncoderError(refusal)
            self.stats.tokens += n_tokens
            return np.asarray(vectors, np.float32)
        raise EncoderError(f"the worker process died {_DEATHS} times of it: it crashed, or had too little memory.")

    def _living_worker(self) -> Any:
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
