"""The one training loop: batches, a dev score after each epoch, the best state kept, early stop, resume after a kill.

Everything random in an epoch comes from the seed and the epoch's number, so a run that was killed and resumed ends
with the same numbers as one that was not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from decoder2vec.errors import InputError
from decoder2vec.places import whole_file
from decoder2vec.recipes.freeze import Schedule

Rows = NDArray[np.intp]

_WARM_UP = 0.1
_SAVE_EVERY = 10.0
"""Seconds between checkpoints: what a kill can cost."""


@dataclass(frozen=True)
class Note:
    """What the loop says while it works; loss and score are those of the last whole epoch."""

    stage: str
    step: int
    steps: int
    loss: float | None
    score: float | None


Watch = Callable[[Note], object]


@dataclass(frozen=True)
class Task:
    """What is trained: which batches, which loss, which score says that it got better (higher is better)."""

    stage: str
    count: int
    """How many examples there are."""
    loss: Callable[[Rows], Tensor]
    """The loss of a batch, given its examples' numbers."""
    score: Callable[[], float]
    schedule: Schedule


@dataclass
class History:
    """Loss and score after each epoch, and which was best."""

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best: int = -1
    start: float = -math.inf
    """The score before the first epoch."""

    @property
    def best_score(self) -> float:
        """The best score so far; the untrained state counts."""
        return self.scores[self.best] if self.best >= 0 else self.start

    def finished(self, schedule: Schedule) -> bool:
        """Are all epochs done, or has the score stopped rising?"""
        done = len(self.scores)
        return done >= schedule.epochs or done - 1 - self.best >= schedule.patience


def fit(
    module: nn.Module, task: Task, seed: int, *, checkpoint: Path | None = None, watch: Watch = lambda _: None
) -> History:
    """Train the module's parameters; it ends in the state that scored best."""
    schedule = task.schedule
    if task.count < 1 or schedule.batch < 1:
        raise InputError(f"The stage {task.stage} has {task.count} examples in batches of {schedule.batch}: give more.")
    optimizer = torch.optim.AdamW(module.parameters(), lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True)
    run = _Run(module, optimizer, checkpoint)
    module.eval()
    history = run.resume() or History(start=task.score())
    if not history.scores:
        run.keep_best()
    per_epoch = len(list(_batches(np.arange(task.count), schedule.batch)))
    total = per_epoch * schedule.epochs
    while not history.finished(schedule):
        epoch = len(history.scores)
        torch.manual_seed(_mixed_seed(seed, epoch))
        order = np.random.default_rng([seed, epoch]).permutation(task.count)
        module.train()
        losses = torch.zeros((), device=next(module.parameters()).device)
        for number, rows in enumerate(_batches(order, schedule.batch)):
            step = epoch * per_epoch + number
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate * rate_factor(step, total)
            losses += _step(optimizer, task.loss(rows))
            watch(Note(task.stage, step + 1, total, _last(history.losses), _last(history.scores)))
        history.losses.append(_finite(losses.item() / per_epoch, task.stage, epoch))
        module.eval()
        history.scores.append(task.score())
        if history.scores[-1] > history.best_score:
            history.best = epoch
            run.keep_best()
        run.save(history)
    run.save(history, always=True)  # a stage that is done is not done again if the rest is killed
    watch(Note(task.stage, total, total, _last(history.losses), history.best_score))
    module.load_state_dict(run.best)
    module.eval()
    return history


def rate_factor(step: int, total: int) -> float:
    """The learning rate as a part of its peak: a straight rise, then half a cosine down to zero."""
    rise = max(1, round(_WARM_UP * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))


def _batches(order: Rows, size: int) -> Iterator[Rows]:
    """Batches of `size`; a rest of one example joins the batch before it, since some losses need two."""
    begin = 0
    while begin < len(order):
        end = begin + size if len(order) - begin - size > 1 else len(order)
        yield order[begin:end]
        begin = end


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _finite(loss: float, stage: str, epoch: int) -> float:
    if not math.isfinite(loss):
        raise InputError(f"The loss of {stage} is not finite in epoch {epoch + 1}; try a lower learning rate.")
    return loss


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None


def _mixed_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


class _Run:
    """The states of a run: now, best, and the optimiser's, in memory and in a checkpoint."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, file: Path | None) -> None:
        self.module, self.optimizer, self.file = module, optimizer, file
        self.best: dict[str, Tensor] = {}
        self.saved = time.monotonic()

    def keep_best(self) -> None:
        """Remember the present state as the best."""
        self.best = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}

    def save(self, history: History, *, always: bool = False) -> None:
        """Write a checkpoint, unless the last one is young."""
        if self.file is None or (time.monotonic() - self.saved < _SAVE_EVERY and not always):
            return
        tensors = {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"now.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
        note = json.dumps({"losses": history.losses, "scores": history.scores, "best": history.best})
        with whole_file(self.file) as temporary:
            save_file(
                {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
                temporary,
                metadata={"history": note, "start": repr(history.start)},
            )
        self.saved = time.monotonic()

    def resume(self) -> History | None:
        """Take up a checkpoint if there is a sound one."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            with safe_open(self.file, framework="pt") as handle:
                note = handle.metadata()
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            history = History(**json.loads(note["history"]), start=float(note["start"]))
            self.module.load_state_dict(_part(tensors, "now."))
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError):
            return None
        device = next(self.module.parameters()).device
        self.best = {name: tensor.to(device) for name, tensor in _part(tensors, "best.").items()}
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in _part(tensors, "adam.").items():
            number, key = name.split(".", 1)
            state.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        return history


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
