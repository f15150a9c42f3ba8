"""Latents computed by the workers of Ray, for sweeps over the ways to read a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import EncodingStats, Extractor, check_texts
from decoder2vec.activations.rerouting import reroute
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bulk.ray_engine import RETRIES, count_workers, start_ray, worker_errors
from decoder2vec.config import Reading
from decoder2vec.errors import StorageError
from decoder2vec.progress import current_progress
from decoder2vec.text.template import Template

_TEXTS = 64
"""Texts of one request: their latents of all layers and poolings are up to tens of megabytes."""


class RayLatents:
    """Fills latents stores as `Extractor.fill` does, in workers that each have the model.

    A worker that crashes is restarted, and what it was computing is repeated, up to `RETRIES` times.

    Args:
        model: Name of the model, which every node can load.
        backbone: The same, loaded here.
        workers: How many; by default one for each GPU of the cluster, or for each core.
        device: Where workers compute; by default on a GPU if the cluster has one.

    Raises:
        MissingExtraError: Ray is not installed.
        StorageError: A worker has another model under that name, or crashes repeatedly.
    """

    def __init__(
        self, model: str | Path, backbone: Backbone, workers: int | None = None, device: str | None = None
    ) -> None:
        ray = start_ray()
        n_workers, n_gpus = count_workers(ray, workers, device, at_once=True)
        remote = ray.remote(num_cpus=1, num_gpus=1 if n_gpus else 0, max_restarts=-1, max_task_retries=RETRIES)(
            _LatentsWorker
        )
        device = "cuda" if n_gpus else device
        self._workers = [remote.remote(str(model), device, backbone.dtype_name) for _ in range(n_workers)]
        with worker_errors(ray):
            fingerprints = ray.get([worker.fingerprint.remote() for worker in self._workers])
        if set(fingerprints) != {backbone.fingerprint}:
            raise StorageError(f"{model} is another model on a node; copy the same one to all nodes.")

    def __call__(self, extractor: Extractor, store: Store, texts: Sequence[str], attention: str) -> None:
        """Compute the latents that the store lacks; what a worker has returned is on disk even if a later one fails.

        Args:
            extractor: Says what is read.
            store: Where latents are kept.
            texts: The texts.
            attention: That of the extractor's model, with re-routing after a plus sign.
        """
        import ray
        from ray.util import ActorPool

        keys = text_keys(check_texts(texts))
        missing = store.missing(keys)
        current_progress().remaining_work -= extractor.work * (len(texts) - len(missing))
        groups = [missing[start : start + _TEXTS] for start in range(0, len(missing), _TEXTS)]
        settings = (
            attention,
            tuple(extractor.readings),
            extractor.template.string,
            extractor.max_length,
            extractor.on_overflow,
        )
        answers = ActorPool(self._workers).map(
            lambda worker, rows: worker.compute.remote([texts[row] for row in rows], settings), groups
        )
        with worker_errors(ray):
            for rows, (latents, stats) in zip(groups, answers, strict=True):
                store.add(keys[rows], latents)
                extractor.stats += stats
                current_progress().advance(extractor.work * len(rows))


class _LatentsWorker:
    """A process with the model."""

    def __init__(self, name: str, device: str | None, dtype: str) -> None:
        self._backbone = Backbone.load(name, device=device, dtype=dtype)

    def fingerprint(self) -> str:
        return self._backbone.fingerprint

    def compute(
        self, texts: list[str], settings: tuple[str, tuple[Reading, ...], str, int, str]
    ) -> tuple[NDArray[np.float32], EncodingStats]:
        """Latents of texts, and what they took."""
        attention, readings, template, max_length, on_overflow = settings
        direction, _, rerouting = attention.partition("+")
        self._backbone.set_attention(direction)
        backbone = reroute(self._backbone, rerouting) if rerouting else self._backbone
        extractor = Extractor(backbone, readings, Template(template), max_length, on_overflow)
        return extractor(texts), extractor.stats
