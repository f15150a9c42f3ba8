"""An encoder whose texts are shared out among the workers of Ray, for everything that takes an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bulk.ray_engine import RETRIES, count_workers, start_ray, worker_errors
from decoder2vec.encoder import Encoder
from decoder2vec.errors import StorageError
from decoder2vec.progress import current_progress

ENGINES = ("local", "ray")
"""Where texts are computed: in this process, or in the workers of Ray."""
_MIN_TEXTS = 64
"""Texts of one request to a worker, at least; fewer are computed here."""
_REQUESTS_PER_WORKER = 4
"""So many that workers end at about the same time, though texts differ in length."""


class RayEncoder(Encoder):
    """An `Encoder` that computes many texts on the nodes of a Ray cluster, or on the cores of this machine.

    Create one with `RayEncoder.from_name`. Vectors are those of the encoder itself; a worker that dies is started
    again, and what it was computing is repeated, but not for ever.
    """

    _workers: tuple[Any, ...] = ()

    @classmethod
    def from_name(
        cls,
        name: str | Path,
        *,
        workers: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        **choices: Any,
    ) -> RayEncoder:
        """Load an encoder here and in every worker.

        Args:
            name: What `Encoder.from_pretrained` takes, and every node can load.
            workers: How many; by default one for each GPU of the cluster, or for each core.
            device: Where workers compute; by default on a GPU if the cluster has one.
            dtype: What they compute in; by default what suits the device of this process.
            choices: layer, pooling, template or attention of a model, as for `Encoder.from_pretrained`.

        Raises:
            MissingExtraError: Ray is not installed.
            StorageError: A worker has another encoder under that name, or dies again and again.
        """
        ray = start_ray()
        n_workers, n_gpus = count_workers(ray, workers, device, at_once=True)
        local = Encoder.from_pretrained(name, device=device, dtype=dtype, **choices)
        encoder = cls(local.backbone, local.spec, local.head)
        encoder.probabilities = local.probabilities
        remote = ray.remote(num_cpus=1, num_gpus=1 if n_gpus else 0, max_restarts=-1, max_task_retries=RETRIES)(_Worker)
        options = {
            "device": "cuda" if n_gpus else device,
            "dtype": local.backbone.dtype_name,
            **choices,
        }
        encoder._workers = tuple(remote.remote(str(name), options) for _ in range(n_workers))
        with worker_errors(ray):
            fingerprints = ray.get([worker.fingerprint.remote() for worker in encoder._workers])
        if set(fingerprints) != {local.fingerprint}:
            raise StorageError(f"{name} is another encoder on a node; copy the same one to all nodes.")
        return encoder

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def _compute_vectors(
        self, texts: list[str], prompt: str, batch_size: int | None, show_progress_bar: bool | None
    ) -> NDArray[np.float32]:
        if len(texts) <= _MIN_TEXTS:
            return super()._compute_vectors(texts, prompt, batch_size, show_progress_bar)
        import ray
        from ray.util import ActorPool

        vectors = np.empty((len(texts), self.dim), np.float32)
        pool = ActorPool(list(self._workers))
        slices = list(self._slices(len(texts)))
        answers = pool.map(lambda worker, rows: worker.compute.remote(texts[rows], prompt, batch_size), slices)
        with worker_errors(ray):
            for rows, (part, n_tokens) in zip(slices, answers, strict=True):
                vectors[rows] = part
                current_progress().advance(len(part))
                self.stats.texts += len(part)
                self.stats.tokens += n_tokens
        return vectors

    def _slices(self, n_texts: int) -> Iterator[slice]:
        size = max(_MIN_TEXTS, -(-n_texts // (_REQUESTS_PER_WORKER * len(self._workers))))
        return (slice(start, start + size) for start in range(0, n_texts, size))


class _Worker:
    """A process with the encoder."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._encoder = Encoder.from_pretrained(name, **options)

    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def compute(self, texts: list[str], prompt: str, batch_size: int | None) -> tuple[NDArray[np.float32], int]:
        n_tokens = self._encoder.stats.tokens
        vectors = self._encoder._compute_vectors(texts, prompt, batch_size, False)
        return vectors, self._encoder.stats.tokens - n_tokens
