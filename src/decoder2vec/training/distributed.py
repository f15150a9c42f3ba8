"""Training in several processes (`torchrun`, `accelerate launch`): each encodes its share, all see the whole batch.

Vectors are gathered from all processes, so that every text is a negative for every other, each process computes the
loss of the whole batch, and gradients are averaged: the step is the one that a single process would make.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from decoder2vec.errors import InputError, OtherProcessError

_device: torch.device | None = None
"""Where this process trains, if it is one of several."""
_trainings = itertools.count()
"""Numbers the trainings of this process; all processes run the same ones."""

Value = TypeVar("Value")


def is_main_process() -> bool:
    """Whether this process evaluates, writes files and prints."""
    return rank() == 0


def rank() -> int:
    """Index of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def init_processes(device: torch.device, notify: Callable[[str], object] = lambda _: None) -> None:
    """Connect to the other processes, if this one was launched together with others.

    Args:
        device: Where this process trains.
        notify: Called with a message if a launcher has started fewer processes than it was told to.

    Raises:
        InputError: This torch cannot connect processes.
    """
    global _device
    _device = device
    if "WORLD_SIZE" not in os.environ and "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ:
        notify("accelerate has started a single process, as it does with --cpu; torchrun starts several")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world_size() > 1:
        return
    if not dist.is_available():
        raise InputError("This build of torch cannot train in several processes; start one process.")
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count():  # NCCL refuses to share a GPU
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)


def process_device() -> torch.device:
    """The device that this process trains on, also where a model that is too large for it was loaded elsewhere."""
    return _device or torch.device("cpu")


@contextmanager
def failing_together() -> Iterator[None]:
    """Context that ends in all processes if it fails in one; only the first to fail raises its own error.

    Raises:
        OtherProcessError: Another process has failed before this one, which waited for it or failed as well.
    """
    failures = f"decoder2vec/failures/{next(_trainings)}"
    try:
        yield
    except Exception as error:
        if world_size() > 1 and not _is_first(failures):
            raise OtherProcessError("Another process of this training has failed first; see its message.") from error
        raise


def _is_first(key: str) -> bool:
    """Whether no other process has counted up this key of the store that all share."""
    store = dist.distributed_c10d._get_default_store()
    try:
        return bool(store.add(key, 1) == 1)
    except RuntimeError:  # the process that kept the store has ended
        return False


def barrier() -> None:
    """Wait until every process has reached this point."""
    if world_size() > 1:
        dist.barrier()


@contextmanager
def one_process_first() -> Iterator[None]:
    """Context that one process of each machine leaves before the others enter it: they find what it has cached."""
    is_first = os.environ.get("LOCAL_RANK", str(rank())) == "0"
    if not is_first:
        barrier()
    yield
    if is_first:
        barrier()


def local_share(length: int, process: int | None = None) -> range:
    """Indices of the items a process computes: equally many on every process, so the last may exceed `length`.

    Args:
        length: Number of items.
        process: Index of the process; by default this one.

    """
    share, process = -(-length // world_size()), rank() if process is None else process
    return range(process * share, (process + 1) * share)


def gather_rows(local: Tensor, length: int) -> Tensor:
    """[length, ...] rows of all processes; gradients flow into this process's own rows."""
    if world_size() == 1:
        return local
    gathered: Tensor = _GatherRows.apply(local)  # type: ignore[no-untyped-call]
    return gathered[:length]


class _GatherRows(torch.autograd.Function):
    """Concatenates the rows of all processes.

    Each process computes the whole loss, so that what is computed after this has the same gradient everywhere, while
    what is computed before has only the gradient of its own rows. These are multiplied by the number of processes:
    then the mean over processes is the gradient of both.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        """The rows of all processes, in their order."""
        ctx.length = len(local)
        shares = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(shares, local.contiguous())
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """The gradient of this process's rows, times the number of processes."""
        return gradient[rank() * ctx.length :][: ctx.length] * world_size()


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace the gradients of every process by their mean over all processes; FSDP has done that for shards."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if hasattr(parameter, "device_mesh"):
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient.div_(world_size())


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Context in which this process draws random numbers of its own, such as those of dropout.

    All processes have the same random state, from which batches, crops and masked tokens are drawn. With it they would
    drop the same values of different texts. Afterwards the state is as before, and advanced if numbers were drawn: a
    training without dropout draws the same crops with any number of processes.
    """
    if world_size() == 1:
        yield
        return
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(on_gpu):
        torch.manual_seed(int(torch.randint(2**62, ())) + rank())
        before = _random_state(on_gpu)
        yield
        was_used = not torch.equal(_random_state(on_gpu), before)
    if was_used:
        torch.rand(())


def _random_state(devices: Sequence[torch.device]) -> Tensor:
    return torch.cat([torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)])


def all_agree(condition: bool) -> bool:
    """Whether a condition holds in every process."""
    if world_size() == 1:
        return condition
    conditions = [condition] * world_size()
    dist.all_gather_object(conditions, condition)
    return all(conditions)


def broadcast(compute: Callable[[], Value]) -> Value:
    """What the main process computes, on every process."""
    if world_size() == 1:
        return compute()
    values = [compute() if is_main_process() else None]
    dist.broadcast_object_list(values)
    return values[0]  # type: ignore[return-value]
