"""Training in several processes at once (`accelerate launch`): each reads its part of a batch, all see the whole.

Vectors are gathered from all processes, so that every text is a negative for every other, and gradients are added up:
the step is the one that a single process would have made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist


def is_first() -> bool:
    """Is this the process that scores, writes and speaks?"""
    return rank() == 0


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def join() -> None:
    """Meet the other processes, if this one was started with others and has not met them."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or count() > 1:
        return
    from accelerate import PartialState  # type: ignore[import-untyped]

    PartialState()


def wait_for_all() -> None:
    """Go on when every process has come this far."""
    if count() > 1:
        dist.barrier()


def own_part(length: int) -> range:
    """Which of so many items this process computes; every process gets as many, the last ones may repeat the end."""
    each = -(-length // count())
    return range(rank() * each, (rank() + 1) * each)


def gather(own: Tensor, length: int) -> Tensor:
    """[length, ...] the rows of all processes; gradients flow into this one's rows."""
    if count() == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(count())]
    dist.all_gather(parts, own.detach().contiguous())
    parts[rank()] = own
    return torch.cat(parts)[:length]


def add_up_gradients(parameters: Sequence[Tensor]) -> None:
    """The gradients of all processes together."""
    if count() == 1:
        return
    for parameter in parameters:
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient


def score_of_first(score: Callable[[], float]) -> float:
    """A score that one process computes and all hear of."""
    if count() == 1:
        return score()
    told = [score() if is_first() else 0.0]
    dist.broadcast_object_list(told)
    return told[0]
