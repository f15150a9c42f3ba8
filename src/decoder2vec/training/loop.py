"""The one training loop: batches, dev scores, the best state kept, early stop, resume after a kill.

Everything random in an epoch comes from the seed and the epoch's number, and a checkpoint holds the state of the random
numbers, so a run that was killed and resumed ends with the same numbers as one that was not.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoder2vec.errors import InputError
from decoder2vec.recipes.schedule import Schedule
from decoder2vec.training.checkpoint import Checkpoint
from decoder2vec.training.processes import add_up_gradients, is_first, score_of_first

Rows = NDArray[np.intp]

_WARM_UP = 0.1
_LOOK_EVERY = 50
"""Steps between looks at the losses: a look makes a GPU wait, but a loss that is not finite should be seen soon."""


@dataclass(frozen=True)
class Note:
    """What the loop says while it works; loss and score are the last that were taken."""

    stage: str
    step: int
    steps: int
    loss: float | None
    score: float | None


Watch = Callable[[Note], object]


def batches_of(order: Rows, size: int) -> Iterator[Rows]:
    """Batches of `size`; a rest of one example joins the batch before it, since some losses need two."""
    begin = 0
    while begin < len(order):
        end = begin + size if len(order) - begin - size > 1 else len(order)
        yield order[begin:end]
        begin = end


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
    batches: Callable[[Rows, int], Iterator[Rows]] = batches_of
    """Examples in the order of an epoch, and the size of a batch, to batches."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Open around each step, forward and backward."""


@dataclass
class History:
    """Loss and score at each look at dev, and which was best."""

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best: int = -1
    start: float = -math.inf
    """The score before the first step."""

    @property
    def best_score(self) -> float:
        """The best score so far; the untrained state counts."""
        return self.scores[self.best] if self.best >= 0 else self.start

    def stopped_rising(self, patience: int) -> bool:
        """Were so many scores in a row no better?"""
        return len(self.scores) - 1 - self.best >= patience


def fit(
    module: nn.Module,
    task: Task,
    seed: int,
    *,
    checkpoint: Path | None = None,
    log: Path | None = None,
    watch: Watch = lambda _: None,
) -> History:
    """Train the module's parameters; it ends in the state that scored best.

    `log` is a file that gets one line of JSON for each look at dev.
    """
    if task.count < 1 or task.schedule.batch < 1:
        raise InputError(
            f"The stage {task.stage} has {task.count} examples in batches of {task.schedule.batch}: give more."
        )
    return _Run(module, task, seed, Checkpoint(checkpoint, writes=is_first()), log)(watch)


class _Run:
    """One run of the loop."""

    def __init__(self, module: nn.Module, task: Task, seed: int, checkpoint: Checkpoint, log: Path | None) -> None:
        self.module, self.task, self.seed, self.checkpoint, self.log = module, task, seed, checkpoint, log
        schedule = task.schedule
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True
        )
        most = schedule.steps or sys.maxsize
        self.epochs: list[list[Rows]] = []
        self.total = 0
        while self.total < most and (schedule.steps or len(self.epochs) < schedule.epochs):
            self.epochs.append(self._epoch(len(self.epochs)))
            if not self.epochs[-1]:
                break
            self.total = min(self.total + len(self.epochs[-1]), most)
        self.history = History()
        self.step = 0
        self.since: list[Tensor] = []
        self.started = time.perf_counter()

    def __call__(self, watch: Watch) -> History:
        self.module.eval()
        self._begin()
        for step, rows, first_of_epoch, mark in self._remaining():
            if first_of_epoch is not None:
                torch.manual_seed(_mixed_seed(self.seed, first_of_epoch))
            self._train_on(step, rows)
            if mark:
                self._look()
            elif len(self.since) % _LOOK_EVERY == 0:
                self._check_losses()
            watch(Note(self.task.stage, step + 1, self.total, _last(self.history.losses), _last(self.history.scores)))
            if mark and self.history.stopped_rising(self.task.schedule.patience):
                break
        self.checkpoint.write(self.module, self.optimizer, self._progress())  # a stage that is done is not done again
        watch(Note(self.task.stage, self.total, self.total, _last(self.history.losses), self.history.best_score))
        self.checkpoint.restore_best(self.module)
        self.module.eval()
        return self.history

    def _epoch(self, number: int) -> list[Rows]:
        order = np.random.default_rng([self.seed, number]).permutation(self.task.count)
        return list(self.task.batches(order, self.task.schedule.batch))

    def _begin(self) -> None:
        """Take up a checkpoint, or score the start."""
        found = self.checkpoint.resume(self.module, self.optimizer)
        if found is None:
            self.history.start = self._score()
            self.checkpoint.keep_best(self.module)
            return
        self.step = found.pop("step")
        self.history = History(**found)

    def _remaining(self) -> Iterator[tuple[int, Rows, int | None, bool]]:
        """Step, rows, the epoch if the step is its first, and whether dev is looked at after it."""
        if self.history.stopped_rising(self.task.schedule.patience) and self.history.scores:
            return
        every = self.task.schedule.evaluate_every
        step = 0
        for number, epoch in enumerate(self.epochs):
            for place, rows in enumerate(epoch):
                if step == self.total:
                    return
                last = place == len(epoch) - 1
                mark = step + 1 == self.total or ((step + 1) % every == 0 if every else last)
                if step >= self.step:
                    yield step, rows, None if place else number, mark
                step += 1

    def _train_on(self, step: int, rows: Rows) -> None:
        schedule = self.task.schedule
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.rate * rate_factor(step, self.total)
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        with self.task.around():
            loss = self.task.loss(rows)
            loss.backward()  # type: ignore[no-untyped-call]
        add_up_gradients(self.trained)
        if schedule.clip:
            nn.utils.clip_grad_norm_(self.trained, schedule.clip)
        self.optimizer.step()
        self.since.append(loss.detach())
        self.step = step + 1

    def _check_losses(self) -> list[float]:
        """The losses since the last look at dev; one that is not finite ends the run, and names its step."""
        losses: list[float] = torch.stack(self.since).tolist()
        for number, loss in enumerate(losses):
            if not math.isfinite(loss):
                step = self.step - len(losses) + number + 1
                raise InputError(
                    f"The loss of {self.task.stage} is not finite in step {step} of {self.total}; try a lower learning "
                    f"rate{self.checkpoint.where()}."
                )
        return losses

    def _score(self) -> float:
        """The score on dev; one that is not finite ends the run, as a loss would."""
        score = score_of_first(self.task.score)
        if not math.isfinite(score):
            raise InputError(
                f"The dev score of {self.task.stage} is not finite after step {self.step} of {self.total}; try a lower "
                f"learning rate{self.checkpoint.where()}."
            )
        return score

    def _look(self) -> None:
        """Mean loss and score since the last look; the state is kept if it is the best so far."""
        losses = self._check_losses()
        self.since = []
        self.module.eval()
        history = self.history
        history.losses.append(sum(losses) / len(losses))
        history.scores.append(self._score())
        if history.scores[-1] > history.best_score:
            history.best = len(history.scores) - 1
            self.checkpoint.keep_best(self.module)
        self.checkpoint.write_now_and_then(self.module, self.optimizer, self._progress())
        self._write_log()

    def _progress(self) -> dict[str, Any]:
        return {**vars(self.history), "step": self.step}

    def _write_log(self) -> None:
        if self.log is None or not is_first():
            return
        line = {
            "stage": self.task.stage,
            "step": self.step,
            "of": self.total,
            "loss": round(self.history.losses[-1], 6),
            "dev": round(self.history.scores[-1], 4),
            "rate": self.optimizer.param_groups[0]["lr"],
            "seconds": round(time.perf_counter() - self.started, 2),
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def rate_factor(step: int, total: int) -> float:
    """The learning rate as a part of its peak: a straight rise, then half a cosine down to zero."""
    rise = max(1, round(_WARM_UP * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None


def _mixed_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
