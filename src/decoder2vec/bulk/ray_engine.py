"""Parts computed by the workers of Ray Data: on the cores of this machine, or on the nodes of a cluster."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import PartEmbedder, PartReader, PartResult
from decoder2vec.bulk.plan import EmbeddingPlan, Part
from decoder2vec.bulk.tokens import TokeniserSettings, distinct_texts, read_prompts, table_from_bytes, table_to_bytes
from decoder2vec.errors import DataFileError, Decoder2VecError, MissingExtraError, StorageError
from decoder2vec.package import garbage_collection_paused
from decoder2vec.storage import parse_json

if TYPE_CHECKING:  # it imports torch, which processes that only tokenise do not need
    from decoder2vec.bulk.pretokenised_encoder import PretokenisedEncoder

log = logging.getLogger(__name__)

RETRIES = 2
"""How often Ray repeats what a worker was computing when it crashed."""
_SHARE_OF_A_CORE = 0.1
"""What Ray reserves for a process that tokenises, where workers compute on the cores."""


class RayEngine:
    """Computes parts in workers that load the encoder once.

    On GPUs, other processes read the rows and tokenise them, so that a worker with a GPU gets tokens. Ray restarts a
    process that has crashed, and repeats its part. A part is a file of a fixed name that is written atomically, so
    neither a repetition nor a part that two workers compute changes the result. A part on which workers crash
    repeatedly is computed at the end in a separate process, by halves, until the rows that cause it are found.

    Args:
        plan: The plan.
        encoder: Name of the encoder, for the workers.
        out: Path or URL of the folder; every node must reach it.
        workers: How many; by default one for each GPU of the cluster, or for each core.
        device: Where workers compute; by default on a GPU if the cluster has one.
        dtype: What they compute in; by default what the plan says.
        tokenisers: Processes that read and tokenise for the workers, at most one for each; by default one for each GPU,
            and none on CPUs, where every worker does it in a thread.
        settings: How they tokenise; needed if there are any.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        encoder: str,
        out: str,
        workers: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        tokenisers: int | None = None,
        settings: TokeniserSettings | None = None,
    ) -> None:
        self.plan, self.encoder, self.out = plan, encoder, out
        self.dtype = dtype or plan.compute
        self._ray = start_ray()
        self.workers, self._n_gpus = count_workers(self._ray, workers, device)
        self.device = "cuda" if self._n_gpus else device
        wanted = (self.workers if self._n_gpus else 0) if tokenisers is None else tokenisers
        self.tokenisers = min(wanted, self.workers)  # more might wait for cores without end
        if wanted > self.tokenisers:
            log.warning("%d processes tokenise, one for each worker, not %d.", self.tokenisers, wanted)
        self._settings = settings

    def __call__(self, parts: Iterable[Part]) -> Iterator[PartResult]:
        """Yield what each part has, in the order in which they are done.

        Raises:
            DataFileError: A row cannot be embedded.
            StorageError: Workers cannot start, load the encoder or write.
        """
        parts = list(parts)
        ray, items = self._ray, [asdict(part) for part in parts]
        rows, plan = ray.data.from_items(items, override_num_blocks=len(items)), self.plan.to_json()
        with warnings.catch_warnings():
            # Ray 2.60 says that 2.64 will not take max_task_retries, and has no other way to limit them
            warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
            if self.tokenisers:
                rows = rows.map_batches(
                    _TokenisingWorker,
                    fn_constructor_args=(plan, self._settings),
                    batch_size=1,
                    num_cpus=1 if self._n_gpus else _SHARE_OF_A_CORE,
                    max_task_retries=RETRIES,
                    compute=ray.data.ActorPoolStrategy(size=min(self.tokenisers, len(items))),
                )
            results = rows.map_batches(
                _PartWorker,
                fn_constructor_args=(plan, self.encoder, self.out, self.device, self.dtype),
                batch_size=1,
                num_cpus=1 - (_SHARE_OF_A_CORE if self.tokenisers and not self._n_gpus else 0),
                num_gpus=1 if self._n_gpus else None,
                max_task_retries=RETRIES,
                compute=ray.data.ActorPoolStrategy(size=min(self.workers, len(items))),
            )
        results.context.max_errored_blocks = -1  # parts on which workers crash: the others go on
        lost = {part.name: part for part in parts}
        with worker_errors(ray):
            for row in results.iter_rows():
                outcome = parse_json(row["outcome"])
                if "error" in outcome:
                    raise (DataFileError if outcome["of_a_row"] else StorageError)(outcome["error"])
                result = PartResult(**outcome)
                del lost[result.name]
                yield result
            yield from self._embed_isolated(list(lost.values()))

    def _embed_isolated(self, parts: Sequence[Part]) -> Iterator[PartResult]:
        """Compute parts on which workers crashed one by one; rows that crash the process are refused or skipped."""
        if not parts:
            return
        from decoder2vec.bulk.isolated_encoder import IsolatedEncoder

        log.warning("Workers crashed on %d parts; each is retried alone to find the rows that cause it.", len(parts))
        remote = self._ray.remote(num_cpus=1, num_gpus=1 if self._n_gpus else 0, max_restarts=0)(_PartWorker)
        arguments = (self.plan.to_json(), self.encoder, self.out, self.device, self.dtype)
        encoder = IsolatedEncoder(self._ray, lambda: remote.remote(*arguments))
        try:
            yield from map(PartEmbedder(self.plan, encoder, OutputFolder(self.out)), parts)
        finally:
            encoder.close()


class _TokenisingWorker:
    """A process that reads and tokenises parts, without the encoder."""

    def __init__(self, plan: dict[str, Any], settings: TokeniserSettings) -> None:
        self._read = PartReader(EmbeddingPlan.from_json(plan, "The plan"))
        self._settings = settings

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Add the rows of the only part of a batch, and their tokens; an error is left to the worker that follows."""
        part = {name: [int(values[0])] for name, values in batch.items()}
        try:
            table, problems = self._read(Part(**{name: values[0] for name, values in part.items()}))
        except (Decoder2VecError, OSError):
            return {**part, "rows": [b""], "problems": [""], "tokens": [[]]}
        tokens = self._settings.tokenise(distinct_texts(table[self._read.plan.text_column].to_pylist(), problems))
        return {**part, "rows": [table_to_bytes(table)], "problems": [json.dumps(problems)], "tokens": [tokens]}


class _PartWorker:
    """A process with the encoder."""

    def __init__(self, plan: dict[str, Any], encoder: str, out: str, device: str | None, dtype: str) -> None:
        planned = EmbeddingPlan.from_json(plan, "The plan")
        model = self.load_encoder(encoder, device, dtype)
        if model.fingerprint != planned.encoder:
            raise StorageError(f"{encoder} is another encoder on this node; copy the same one to all nodes.")
        self._encoder, self._embed = model, PartEmbedder(planned, model, OutputFolder(out))

    def load_encoder(self, name: str, device: str | None, dtype: str) -> PretokenisedEncoder:
        """Return the encoder."""
        with garbage_collection_paused():
            from decoder2vec.bulk.pretokenised_encoder import PretokenisedEncoder

            encoder = PretokenisedEncoder.from_pretrained(name, device=device, dtype=dtype)
        assert isinstance(encoder, PretokenisedEncoder)
        return encoder

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Compute the only part of a batch; an error is a result, since Ray would wrap it in its own."""
        part = Part(**{name: int(batch[name][0]) for name in ("file", "start", "stop")})
        try:
            rows = bytes(batch["rows"][0]) if "rows" in batch else b""
            outcome = asdict(self._embed_tokens(part, rows, batch) if rows else self._embed(part))
        except (Decoder2VecError, OSError) as error:
            outcome = {"error": str(error), "of_a_row": isinstance(error, DataFileError)}
        return {"outcome": [json.dumps(outcome)]}

    def encode_texts(self, texts: list[str]) -> tuple[NDArray[np.float32], int, str]:
        """Vectors of texts, their number of tokens, and why a text is refused, if one is."""
        n_tokens = self._encoder.stats.tokens
        try:
            return self._embed.encode(texts), self._encoder.stats.tokens - n_tokens, ""
        except Decoder2VecError as error:
            return np.empty((0, 0), np.float32), 0, str(error)

    def _embed_tokens(self, part: Part, rows: bytes, batch: dict[str, Any]) -> PartResult:
        """Compute a part whose rows and tokens came with it."""
        table, problems = table_from_bytes(rows), parse_json(batch["problems"][0])
        problems = {int(index): reason for index, reason in problems.items()}
        texts = distinct_texts(table[self._embed.plan.text_column].to_pylist(), problems)
        self._encoder.known = read_prompts(texts, [bytes(tokens) for tokens in batch["tokens"][0]])
        return self._embed.embed(part, table, problems)


def count_workers(ray: Any, workers: int | None, device: str | None, *, at_once: bool = False) -> tuple[int, int]:
    """Return how many workers there should be, and how many GPUs the cluster has for them.

    Args:
        ray: What `start_ray` returned.
        workers: How many are wanted; None: one for each GPU, or for each core.
        device: Where they compute; None: on GPUs if there are any.
        at_once: All of them are waited for, so that there must be no more than the cluster has room for.
    """
    resources = ray.cluster_resources()
    n_gpus = int(resources.get("GPU", 0)) if device in (None, "cuda") else 0
    most = n_gpus or int(resources.get("CPU", 1))
    if at_once and workers and workers > most:
        log.warning("%d workers are started, not %d: Ray has no more %s.", most, workers, "GPUs" if n_gpus else "cores")
        workers = most
    return workers or most, n_gpus


@contextmanager
def worker_errors(ray: Any) -> Iterator[None]:
    """Raise what Ray says of its workers as StorageError."""
    try:
        yield
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        if isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed:
            reason = "their processes crashed repeatedly, or ran out of memory."
        raise StorageError(f"The workers of Ray failed: {reason}") from error


def start_ray() -> Any:
    """Return ray with its data library, joined to the cluster that RAY_ADDRESS names, or to a new one of this machine.

    Raises:
        MissingExtraError: It is not installed.
        StorageError: It cannot start, or there is no such cluster.
    """
    # its core warns that workers keep their arguments in shared memory, whatever the arguments are
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            address = os.environ.get("RAY_ADDRESS")
            where = f"the cluster that RAY_ADDRESS names, {address}," if address else "Ray on this machine"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise StorageError(f"Cannot use {where}: {reason}.") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs tracebacks of workers that have crashed
    ray.data.DataContext.get_current().enable_progress_bars = False  # the caller has its own
    return ray
