"""Training in several processes (`accelerate launch`): each encodes its share of a batch, all see the whole batch.

Vectors are gathered from all processes, so that every text is a negative for every other, and gradients are summed:
the step is the one that a single process would make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist


def is_main_process() -> bool:
    """Whether this process evaluates, writes files and prints."""
    return rank() == 0


def rank() -> int:
    """Index of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def init_processes() -> None:
    """Connect to the other processes, if this one was launched together with others."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world_size() > 1:
        return
    from accelerate import PartialState  # type: ignore[import-untyped]

    PartialState()


def barrier() -> None:
    """Wait until every process has reached this point."""
    if world_size() > 1:
        dist.barrier()


def local_share(length: int) -> range:
    """Indices of the items this process computes: equally many on every process, so the last may exceed `length`."""
    share = -(-length // world_size())
    return range(rank() * share, (rank() + 1) * share)


def gather_rows(local: Tensor, length: int) -> Tensor:
    """[length, ...] rows of all processes; gradients flow into this process's own rows."""
    if world_size() == 1:
        return local
    shares = [torch.empty_like(local) for _ in range(world_size())]
    dist.all_gather(shares, local.detach().contiguous())
    shares[rank()] = local
    return torch.cat(shares)[:length]


def sum_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace the gradients of every process by their sum over all processes."""
    if world_size() == 1:
        return
    for parameter in parameters:
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient


def broadcast_score(compute: Callable[[], float]) -> float:
    """A score that the main process computes, on every process."""
    if world_size() == 1:
        return compute()
    score = [compute() if is_main_process() else 0.0]
    dist.broadcast_object_list(score)
    return score[0]
