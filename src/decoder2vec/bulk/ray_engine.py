"""Parts computed by the workers of Ray Data: on the cores of this machine, or on the nodes of a cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import PartEmbedder, PartResult
from decoder2vec.bulk.plan import EmbeddingPlan, Part
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, Decoder2VecError, MissingExtraError, StorageError


class RayEngine:
    """Computes parts in workers that load the encoder once.

    Ray starts a worker again that has died, and repeats its part. A part is a file of a fixed name that appears whole,
    so neither a repetition nor a part that two workers compute changes the result.

    Args:
        plan: The plan.
        encoder: Name of the encoder, for the workers.
        out: Path or URL of the folder; every node must reach it.
        workers: How many; by default one for each GPU of the cluster, or for each core.
        device: Where workers compute; by default on a GPU if the cluster has one.
        dtype: What they compute in; by default what the plan says.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        encoder: str,
        out: str,
        workers: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.plan, self.encoder, self.out = plan, encoder, out
        self.dtype = dtype or plan.compute
        self._ray = start_ray()
        self.workers, self._n_gpus = count_workers(self._ray, workers, device)
        self.device = "cuda" if self._n_gpus else device

    def __call__(self, parts: Iterable[Part]) -> Iterator[PartResult]:
        """Yield what each part has, in the order in which they are done.

        Raises:
            DataFileError: A row cannot be embedded.
            StorageError: Workers cannot start, load the encoder or write.
        """
        ray, items = self._ray, [asdict(part) for part in parts]
        results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Worker,
            fn_constructor_args=(self.plan.to_json(), self.encoder, self.out, self.device, self.dtype),
            batch_size=1,
            num_cpus=1,
            num_gpus=1 if self._n_gpus else None,
            compute=ray.data.ActorPoolStrategy(size=min(self.workers, len(items))),
        )
        try:
            for row in results.iter_rows():
                outcome = json.loads(row["outcome"])
                if "error" in outcome:
                    raise (DataFileError if outcome["of_a_row"] else StorageError)(outcome["error"])
                yield PartResult(**outcome)
        except ray.exceptions.RayError as error:
            raise StorageError(f"The workers of Ray failed: {str(error).strip().splitlines()[-1]}") from error


class _Worker:
    """A process with the encoder."""

    def __init__(self, plan: dict[str, Any], encoder: str, out: str, device: str | None, dtype: str) -> None:
        planned = EmbeddingPlan.from_json(plan, "The plan")
        model = Encoder.from_pretrained(encoder, device=device, dtype=dtype)
        if model.fingerprint != planned.encoder:
            raise StorageError(f"{encoder} is another encoder on this node; copy the same one to all nodes.")
        self.embed = PartEmbedder(planned, model, OutputFolder(out))

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Compute the only part of a batch; an error is a result, since Ray would wrap it in its own."""
        part = Part(**{name: int(values[0]) for name, values in batch.items()})
        try:
            outcome = asdict(self.embed(part))
        except (Decoder2VecError, OSError) as error:
            outcome = {"error": str(error), "of_a_row": isinstance(error, DataFileError)}
        return {"outcome": [json.dumps(outcome)]}


def count_workers(ray: Any, workers: int | None, device: str | None) -> tuple[int, int]:
    """Return how many workers there should be, and how many GPUs the cluster has for them.

    Args:
        ray: What `start_ray` returned.
        workers: How many are wanted; None: one for each GPU, or for each core.
        device: Where they compute; None: on GPUs if there are any.
    """
    resources = ray.cluster_resources()
    n_gpus = int(resources.get("GPU", 0)) if device in (None, "cuda") else 0
    return workers or n_gpus or int(resources.get("CPU", 1)), n_gpus


def start_ray() -> Any:
    """Return ray with its data library, joined to the cluster that RAY_ADDRESS names, or to a new one of this machine.

    Raises:
        MissingExtraError: It is not installed.
    """
    # its core warns that workers keep their arguments in shared memory, whatever the arguments are
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the caller has its own
    return ray
