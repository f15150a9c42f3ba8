"""The training loop: batches, learning rate, evaluations on dev, early stopping, the best state, resuming.

All randomness of an epoch derives from the seed and the epoch's index, and a checkpoint stores the random number
generators, so a resumed run gives the same numbers as an uninterrupted one. Checkpoints are written between any two
steps: at intervals, and when the run is interrupted.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoder2vec.backbone.sharding import clip_gradients, is_sharded, local_part, split_shards
from decoder2vec.errors import DivergedError, InputError, StorageError
from decoder2vec.progress import current_progress
from decoder2vec.storage import disk_errors_name
from decoder2vec.training.checkpoint import Checkpoint, random_states, set_random_states
from decoder2vec.training.distributed import all_agree, average_gradients, broadcast, is_main_process
from decoder2vec.training.loop_progress import LoopProgress

Rows = NDArray[np.intp]
"""Indices of examples or texts."""

_WARM_UP = 0.1
"""Share of the steps over which the learning rate rises."""
_CHECK_EVERY = 50
"""Steps between checks that losses are finite. Reading a loss makes a GPU wait, so not every step is checked."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast something is trained; a table such as `[lora.training]` of a plan."""

    epochs: int = 12
    steps: int = 0
    """Train this many steps, over as many epochs as that takes; 0: train `epochs`."""
    batch: int = 64
    """Examples per batch."""
    rate: float = 1e-3
    """Peak learning rate: it rises linearly over the first tenth of the steps, then follows a cosine to zero."""
    weight_decay: float = 0.01
    patience: int = 4
    """Stop after this many evaluations on dev in a row without improvement; those in the first tenth do not count."""
    evaluate_every: int = 0
    """Steps between evaluations on dev; 0: evaluate at the end of each epoch."""
    clip: float = 0.0
    """Maximum norm of the gradient; 0: no clipping."""
    save_every: int = 0
    """Save the encoder of every n-th evaluation on dev to `<out>-steps/step-N`, that of the first seed; 0: none."""
    partial_vocabulary: bool = False
    """Hold and train only the embeddings of tokens that the data use (PEMA): the same result in less memory."""

    def __post_init__(self) -> None:
        minimum = {
            "epochs": 0,
            "steps": 0,
            "batch": 1,
            "patience": 1,
            "weight_decay": 0,
            "evaluate_every": 0,
            "save_every": 0,
            "clip": 0,
        }
        for name, lowest in minimum.items():
            if not lowest <= getattr(self, name) < math.inf:  # also refuses NaN, as do the checks below and elsewhere
                raise InputError(f"{name} must be {lowest} or more, not {getattr(self, name)}.")
        if not 0 < self.rate < math.inf:
            raise InputError(f"rate, the learning rate, must be a number above 0, not {self.rate}.")


@dataclass(frozen=True)
class TrainingProgress:
    """The state of training after a step; loss and score are those of the last evaluation."""

    stage: str
    step: int
    steps: int
    loss: float | None
    score: float | None


OnProgress = Callable[[TrainingProgress], object]
SaveStep = Callable[[int], object]


def fixed_size_batches(order: Rows, size: int) -> Iterator[Rows]:
    """Batches of `size`; a single example left over joins the last batch, since some losses need two."""
    start = 0
    while start < len(order):
        end = start + size if len(order) - start - size > 1 else len(order)
        yield order[start:end]
        start = end


@dataclass(frozen=True)
class TrainingTask:
    """What the loop needs to know of an objective."""

    stage: str
    """Name in logs and in the progress."""
    n_examples: int
    loss: Callable[[Rows], Tensor]
    """The loss of a batch, given the indices of its examples."""
    dev_metric: Callable[[], float]
    """Higher is better."""
    schedule: Schedule
    batches: Callable[[Rows, int], Iterator[Rows]] = fixed_size_batches
    """Splits the shuffled examples of an epoch into batches of about the given size."""
    step_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Active during the forward and backward pass of each step."""
    is_sharded: bool = False
    """Whether all processes must evaluate, since each holds a part of the model."""


@dataclass
class History:
    """Mean loss and dev score at each evaluation, and which evaluation was best."""

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best: int = -1
    """Index of the best evaluation; -1 if none was better than the start."""
    start: float = -math.inf
    """Dev score before the first step."""

    @property
    def best_score(self) -> float:
        """The best score so far, the untrained state included."""
        return self.scores[self.best] if self.best >= 0 else self.start

    def last_scores(self) -> str:
        """Loss and dev score of the last evaluation, for the progress; empty before the first."""
        return f"loss {self.losses[-1]:.4f}, dev {self.scores[-1]:.2f}" if self.scores else ""

    def is_stale(self, patience: int, n_warm_up: int) -> bool:
        """Whether the last `patience` evaluations brought no improvement, the first `n_warm_up` not counted."""
        return len(self.scores) - max(self.best + 1, n_warm_up) >= patience


def fit(
    module: nn.Module,
    task: TrainingTask,
    seed: int,
    *,
    checkpoint: Path | None = None,
    log: Path | None = None,
    on_progress: OnProgress = lambda _: None,
    save_step: SaveStep = lambda _: None,
) -> History:
    """Train the parameters of a module and leave it in the state that scored best on dev.

    Args:
        module: Its parameters with `requires_grad` are trained.
        task: Loss, batches, dev metric and schedule.
        seed: Determines the order of the examples and all other randomness.
        checkpoint: File to resume from, and to write the state of the run to.
        log: File that gets one JSON line per evaluation.
        on_progress: Called after every step.
        save_step: Called with the number of steps done, at every n-th evaluation where the schedule has `save_every`.

    Raises:
        DivergedError: A loss or dev score is not finite.

    """
    if task.n_examples < 1 or task.schedule.batch < 1:
        examples = f"{task.n_examples} example{'s' * (task.n_examples != 1)}"
        raise InputError(
            f"{task.stage}: {examples} and batches of {task.schedule.batch}; give at least one example, and batches of "
            "one or more."
        )
    file = Checkpoint(checkpoint, writes=is_main_process(), gathers=is_sharded(module))
    return TrainingLoop(module, task, seed, file, log, save_step).run(on_progress)


class TrainingLoop:
    """One run of `fit`."""

    def __init__(
        self,
        module: nn.Module,
        task: TrainingTask,
        seed: int,
        checkpoint: Checkpoint,
        log: Path | None,
        save_step: SaveStep,
    ) -> None:
        self.module, self.task, self.checkpoint, self.log, self.save_step = module, task, checkpoint, log, save_step
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        schedule = task.schedule
        groups = [{"params": group} for group in split_shards(self.parameters)]
        self.optimizer = torch.optim.AdamW(groups, lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True)
        self.steps = TrainingSteps(task, seed)
        self.progress = LoopProgress(task.stage, self.steps.total, self.steps.n_evaluations)
        self.history = History()
        self.step = 0
        """Steps done."""
        self.losses: list[float] = []
        """Losses since the last evaluation that were read from the device."""
        self.pending_losses: list[Tensor] = []
        """Later losses, still on the device."""
        self.log_lines: list[dict[str, Any]] = []
        self.random: dict[str, Tensor] = {}
        """Random number generators at the last consistent state; an interrupted step has advanced them already."""
        self.is_consistent = False
        """False while parameters, step and losses are being changed together."""
        self.started = time.perf_counter()

    def run(self, on_progress: OnProgress) -> History:
        """Train until the last step, or until dev scores stop improving."""
        self.module.eval()
        try:
            with current_progress().phase("training"):
                self._resume_or_start()
                self._run_steps(on_progress)
        except KeyboardInterrupt:
            if self.is_consistent and self.step and not self.checkpoint.gathers:  # others may be in another step
                self._save_if_finite()
            raise
        self._save()  # so that a finished stage is not trained again
        on_progress(self._progress(self.steps.total, self.history.best_score))
        self.checkpoint.restore_best(self.module)
        self.module.eval()
        return self.history

    def _resume_or_start(self) -> None:
        with self._consistent_state():
            saved = self.checkpoint.resume(self.module, self.optimizer)
            step = saved["step"] if saved else 0
            if broadcast(lambda: step) != step:
                raise StorageError(
                    f"Not all processes can read the checkpoint {self.checkpoint.file}; give an --out on a disk that "
                    "all machines share."
                )
            if saved is None:
                self.history.start = self._dev_score()
                self.checkpoint.keep_best(self.module)
            else:
                self.step, self.losses, self.log_lines = saved.pop("step"), saved.pop("losses_read"), saved.pop("log")
                self.started -= saved.pop("seconds")
                self.history = History(**saved)
                self.progress.resume(self.step, len(self.history.scores))
        self._write_log(self.log_lines, "w")  # the file may hold steps that will be repeated, or another run's

    def _run_steps(self, on_progress: OnProgress) -> None:
        if self.losses and self.steps.is_eval_step(self.step):  # the run was interrupted during this evaluation
            self._evaluate()
        for step, rows, epoch_seed in self.steps.remaining(self.step):
            if self.step == self.steps.total or self._is_stale():
                return
            if epoch_seed is not None:
                torch.manual_seed(epoch_seed)
            self._train_step(step, rows)
            self.progress.finish_step(self.history.last_scores())
            if self.steps.is_eval_step(self.step):
                self._evaluate()
            elif len(self.pending_losses) == _CHECK_EVERY:
                self._check_losses()
            if self.checkpoint.is_due():
                self._save_if_finite()
            on_progress(self._progress(step + 1, _last(self.history.scores)))

    def _is_stale(self) -> bool:
        return self.history.is_stale(self.task.schedule.patience, self.steps.n_warm_up_evaluations)

    def _train_step(self, step: int, rows: Rows) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        with self.task.step_context():
            loss = self.task.loss(rows)
            loss.backward()  # type: ignore[no-untyped-call]
        average_gradients(self.parameters)
        if self.task.schedule.clip:
            clip_gradients(self.parameters, self.task.schedule.clip)
        with self._consistent_state():
            self.optimizer.step()
            self.pending_losses.append(loss.detach())
            self.step = step + 1

    def _evaluate(self) -> None:
        """Record mean loss and dev score since the last evaluation; keep the state if it is the best so far."""
        self._check_losses()
        self.module.eval()
        score, history = self._dev_score(), self.history
        if (every := self.task.schedule.save_every) and (len(history.scores) + 1) % every == 0:
            random = random_states()
            self.save_step(self.step)  # before the evaluation is recorded: a run that is killed here repeats both
            set_random_states(random)
        with self._consistent_state():
            history.losses.append(sum(self.losses) / len(self.losses))
            history.scores.append(score)
            self.losses = []
            if score > history.best_score:
                history.best = len(history.scores) - 1
                self.checkpoint.keep_best(self.module)
            self.log_lines.append(self._log_line())
            self._write_log(self.log_lines[-1:])

    def _dev_score(self) -> float:
        with self.progress.evaluation():
            score = self.task.dev_metric() if self.task.is_sharded else broadcast(self.task.dev_metric)
        if not math.isfinite(score):
            raise DivergedError(
                f"The dev score of {self.task.stage} is not finite after step {self.step} of {self.steps.total}; try a "
                f"lower learning rate{self.checkpoint.hint()}."
            )
        return score

    def _all_losses(self) -> list[float]:
        """Losses since the last evaluation, those on the device included."""
        return self.losses + (torch.stack(self.pending_losses).tolist() if self.pending_losses else [])

    def _check_losses(self) -> None:
        """Read the pending losses; raise if one is not finite, naming its step."""
        losses = self._all_losses()
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                step = self.step - len(losses) + index + 1
                raise DivergedError(
                    f"The loss of {self.task.stage} is not finite in step {step} of {self.steps.total}; try a lower "
                    f"learning rate{self.checkpoint.hint()}."
                )
        with self._consistent_state():
            self.losses, self.pending_losses = losses, []

    @contextmanager
    def _consistent_state(self) -> Iterator[None]:
        """Mark changes that belong together: an interrupt inside the block must not write a checkpoint."""
        self.is_consistent = False
        yield
        self.random = random_states()
        self.is_consistent = True

    def _save(self) -> None:
        progress = {**vars(self.history), "step": self.step, "losses_read": self._all_losses(), "log": self.log_lines}
        progress["seconds"] = self._seconds()
        self.checkpoint.write(self.module, self.optimizer, progress, self.random)

    def _save_if_finite(self) -> None:
        """Skip the checkpoint if a loss or a parameter is not finite: the next evaluation will raise."""
        finite = all(map(math.isfinite, self._all_losses()))
        finite = finite and all(bool(local_part(parameter).isfinite().all()) for parameter in self.parameters)
        if all_agree(finite) if self.checkpoint.gathers else finite:
            self._save()

    def _write_log(self, lines: list[dict[str, Any]], mode: str = "a") -> None:
        if self.log and is_main_process():
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with disk_errors_name(self.log), self.log.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def _log_line(self) -> dict[str, Any]:
        return {
            "stage": self.task.stage,
            "step": self.step,
            "of": self.steps.total,
            "loss": round(self.history.losses[-1], 6),
            "dev": round(self.history.scores[-1], 4),
            "rate": self._learning_rate(self.step - 1),
            "seconds": round(self._seconds(), 2),
        }

    def _progress(self, step: int, score: float | None) -> TrainingProgress:
        return TrainingProgress(self.task.stage, step, self.steps.total, _last(self.history.losses), score)

    def _learning_rate(self, step: int) -> float:
        return self.task.schedule.rate * learning_rate_factor(step, self.steps.total)

    def _seconds(self) -> float:
        return time.perf_counter() - self.started


class TrainingSteps:
    """The batches of all epochs, in the order that a seed gives, and the steps after which dev is evaluated."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        schedule = task.schedule
        limit = schedule.steps or sys.maxsize
        self.seed, self.evaluate_every = seed, schedule.evaluate_every
        self.epochs: list[list[Rows]] = []
        self.epoch_ends: set[int] = set()
        self.total = 0
        while self.total < limit and (schedule.steps or len(self.epochs) < schedule.epochs):
            order = np.random.default_rng([seed, len(self.epochs)]).permutation(task.n_examples)
            self.epochs.append(list(task.batches(order, schedule.batch)))
            if not self.epochs[-1]:
                break
            self.total = min(self.total + len(self.epochs[-1]), limit)
            self.epoch_ends.add(self.total)

    def remaining(self, done: int) -> Iterator[tuple[int, Rows, int | None]]:
        """(step, rows, seed) of each step after the first `done`; the seed is None except at the start of an epoch."""
        step = 0
        for epoch, batches in enumerate(self.epochs):
            for index, rows in enumerate(batches):
                if done <= step < self.total:
                    yield step, rows, None if index else self._epoch_seed(epoch)
                step += 1

    def is_eval_step(self, done: int) -> bool:
        """Whether dev is evaluated after `done` steps."""
        if done == self.total:
            return True
        return done % self.evaluate_every == 0 if self.evaluate_every else done in self.epoch_ends

    @cached_property
    def n_evaluations(self) -> int:
        """How often dev is evaluated, besides before the first step."""
        return sum(map(self.is_eval_step, range(1, self.total + 1)))

    @cached_property
    def n_warm_up_evaluations(self) -> int:
        """How often dev is evaluated while the learning rate rises; small steps need not improve anything."""
        return sum(map(self.is_eval_step, range(1, warm_up_steps(self.total) + 1)))

    def _epoch_seed(self, epoch: int) -> int:
        return int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])


def warm_up_steps(total: int) -> int:
    """The number of steps in which the learning rate rises."""
    return max(1, round(_WARM_UP * total))


def learning_rate_factor(step: int, total: int) -> float:
    """The learning rate as a fraction of its peak: linear warm-up, then a cosine to zero."""
    warm_up = warm_up_steps(total)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, total - warm_up)))


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
