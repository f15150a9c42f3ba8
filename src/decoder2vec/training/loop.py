"""The one training loop: batches, dev scores, the best state kept, early stop, resume after a kill.

Everything random in an epoch comes from the seed and the epoch's number, and a checkpoint holds the state of the random
numbers, so a run that was killed and resumed ends with the same numbers as one that was not. Checkpoints are written
between any two steps, when it is time, and when a run is interrupted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoder2vec.errors import DivergedError, InputError
from decoder2vec.recipes.schedule import Schedule
from decoder2vec.training.checkpoint import Checkpoint, random_states
from decoder2vec.training.processes import add_up_gradients, is_first, score_of_first
from decoder2vec.training.steps import Steps, rate_factor

Rows = NDArray[np.intp]

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


OnProgress = Callable[[Note], object]


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
    on_progress: OnProgress = lambda _: None,
) -> History:
    """Train the module's parameters; it ends in the state that scored best.

    `log` is a file that gets one line of JSON for each look at dev.
    """
    if task.count < 1 or task.schedule.batch < 1:
        raise InputError(
            f"The stage {task.stage} has {task.count} examples in batches of {task.schedule.batch}: give more."
        )
    return _Run(module, task, seed, Checkpoint(checkpoint, writes=is_first()), log)(on_progress)


class _Run:
    """One run of the loop."""

    def __init__(self, module: nn.Module, task: Task, seed: int, checkpoint: Checkpoint, log: Path | None) -> None:
        self.module, self.task, self.checkpoint, self.log = module, task, checkpoint, log
        schedule = task.schedule
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True
        )
        self.steps = Steps(task, seed)
        self.total = self.steps.total
        self.history = History()
        self.step = 0
        self.since: list[float] = []
        """The losses since the last look at dev, but for those that were not read yet."""
        self.unread: list[Tensor] = []
        self.lines: list[dict[str, Any]] = []
        """Of the log."""
        self.random: dict[str, Tensor] = {}
        """Where random numbers stood when the state was last whole; an interrupted step has drawn some already."""
        self.whole = False
        self.started = time.perf_counter()

    def __call__(self, on_progress: OnProgress) -> History:
        self.module.eval()
        self._begin()
        try:
            self._go_on(on_progress)
        except KeyboardInterrupt:
            if self.whole and self.step:
                self._write_if_sound()
            raise
        self._write()  # a stage that is done is not done again
        on_progress(Note(self.task.stage, self.total, self.total, _last(self.history.losses), self.history.best_score))
        self.checkpoint.restore_best(self.module)
        self.module.eval()
        return self.history

    def _begin(self) -> None:
        """Take up a checkpoint, or score the start."""
        with self._as_one():
            found = self.checkpoint.resume(self.module, self.optimizer)
            if found is None:
                self.history.start = self._score()
                self.checkpoint.keep_best(self.module)
            else:
                self.step, self.since, self.lines = found.pop("step"), found.pop("since", []), found.pop("log", [])
                self.started -= found.pop("seconds", 0.0)
                self.history = History(**found)
        self._write_log(self.lines, "w")  # the file may tell of steps that will be made again, or of another run

    def _go_on(self, on_progress: OnProgress) -> None:
        """All steps that are left."""
        if self.since and self.steps.is_look(self.step):  # the run was interrupted in the middle of it
            self._look()
        for step, rows, seed_of_epoch in self.steps.after(self.step):
            if self._is_over():
                return
            if seed_of_epoch is not None:
                torch.manual_seed(seed_of_epoch)
            self._train_on(step, rows)
            if self.steps.is_look(self.step):
                self._look()
            elif len(self.unread) == _LOOK_EVERY:
                self._check_losses()
            if self.checkpoint.is_due():
                self._write_if_sound()
            on_progress(
                Note(self.task.stage, step + 1, self.total, _last(self.history.losses), _last(self.history.scores))
            )

    def _is_over(self) -> bool:
        tired = bool(self.history.scores) and self.history.stopped_rising(self.task.schedule.patience)
        return tired or self.step == self.total

    @contextmanager
    def _as_one(self) -> Iterator[None]:
        """Around changes that belong together: between them there is no state that a run could go on from."""
        self.whole = False
        yield
        self.random = random_states()
        self.whole = True

    def _train_on(self, step: int, rows: Rows) -> None:
        schedule = self.task.schedule
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(step)
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        with self.task.around():
            loss = self.task.loss(rows)
            loss.backward()  # type: ignore[no-untyped-call]
        add_up_gradients(self.trained)
        if schedule.clip:
            nn.utils.clip_grad_norm_(self.trained, schedule.clip)
        with self._as_one():
            self.optimizer.step()
            self.unread.append(loss.detach())
            self.step = step + 1

    def _losses(self) -> list[float]:
        """All since the last look at dev."""
        return self.since + (torch.stack(self.unread).tolist() if self.unread else [])

    def _check_losses(self) -> None:
        """Read the losses; one that is not finite ends the run, and names its step."""
        losses = self._losses()
        for number, loss in enumerate(losses):
            if not math.isfinite(loss):
                step = self.step - len(losses) + number + 1
                raise DivergedError(
                    f"The loss of {self.task.stage} is not finite in step {step} of {self.total}; try a lower learning "
                    f"rate{self.checkpoint.where()}."
                )
        with self._as_one():
            self.since, self.unread = losses, []

    def _score(self) -> float:
        """The score on dev; one that is not finite ends the run, as a loss would."""
        score = score_of_first(self.task.score)
        if not math.isfinite(score):
            raise DivergedError(
                f"The dev score of {self.task.stage} is not finite after step {self.step} of {self.total}; try a lower "
                f"learning rate{self.checkpoint.where()}."
            )
        return score

    def _look(self) -> None:
        """Mean loss and score since the last look; the state is kept if it is the best so far."""
        self._check_losses()
        self.module.eval()
        score, history = self._score(), self.history
        with self._as_one():
            history.losses.append(sum(self.since) / len(self.since))
            history.scores.append(score)
            self.since = []
            if score > history.best_score:
                history.best = len(history.scores) - 1
                self.checkpoint.keep_best(self.module)
            self.lines.append(self._line())
            self._write_log(self.lines[-1:])

    def _write(self) -> None:
        progress = {**vars(self.history), "step": self.step, "since": self._losses(), "log": self.lines}
        progress["seconds"] = self._seconds()
        self.checkpoint.write(self.module, self.optimizer, progress, self.random)

    def _write_if_sound(self) -> None:
        """Write, but nothing that went wrong since the last look: of that the next one will tell."""
        finite = all(map(math.isfinite, self._losses()))
        if finite and all(bool(parameter.isfinite().all()) for parameter in self.trained):
            self._write()

    def _write_log(self, lines: list[dict[str, Any]], mode: str = "a") -> None:
        if self.log and is_first():
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def _line(self) -> dict[str, Any]:
        """What the log says of the last look."""
        return {
            "stage": self.task.stage,
            "step": self.step,
            "of": self.total,
            "loss": round(self.history.losses[-1], 6),
            "dev": round(self.history.scores[-1], 4),
            "rate": self._rate(self.step - 1),
            "seconds": round(self._seconds(), 2),
        }

    def _rate(self, step: int) -> float:
        return self.task.schedule.rate * rate_factor(step, self.total)

    def _seconds(self) -> float:
        return time.perf_counter() - self.started


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
