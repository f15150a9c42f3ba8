"""The probe: an aggregator and a head that are trained on frozen vectors of the sources, and scored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.choosing.aggregators import Aggregator
from decoder2vec.choosing.tasks import Split, TargetTask
from decoder2vec.errors import DivergedError, InputError

_HIDDEN = 256
_DROPOUT = 0.3
_WARM_UP = 0.1
_DECAY = 0.01
_CLIP = 1.0
_EPS = 1e-6
_STEPS, _SMALLEST_BATCH = 20, 4
"""Steps of an epoch at least, unless batches would become smaller than the second."""


@dataclass(frozen=True)
class ProbeConfig:
    """How probes are trained.

    The aggregator learns more slowly than the head, with warm-up and weight decay, as in the reference code.
    """

    epochs: int = 40
    """Epochs at most; the rates fall to 0 over as many."""
    min_epochs: int = 5
    patience: int = 5
    """Stop after this many epochs without a better validation score."""
    batch_size: int = 64
    """Examples in a batch at most; small data have smaller batches, so that an epoch has 20 steps."""
    rate: float = 1e-3
    """Learning rate of the head."""
    aggregator_rate: float = 1e-4
    seeds: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InputError("There are no seeds to train with; give one or more, such as 1,2,3.")
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise InputError(f"The seed {seed} is repeated; give every seed once.")
        if self.epochs < 1 or self.batch_size < 1 or self.patience < 1:
            raise InputError("epochs, batch_size and patience must be 1 or more.")


def head_features(units: Sequence[Tensor], kind: str) -> Tensor:
    """Return [row, feature]: what the head of a kind of task reads of [row, dim] vectors of its one or two units."""
    if kind in ("classification", "tagging"):
        return units[0]
    left, right = units
    if kind == "regression":  # the score of two texts does not depend on their order
        return torch.cat([(left - right).abs(), left * right], dim=1)
    return torch.cat([left, right, left * right], dim=1)


def make_head(task: TargetTask, dim: int) -> nn.Module:
    """Return a new head for a task on vectors of this dimension: features to logits of the labels, or to a score."""
    if task.kind == "regression":
        return nn.Linear(2 * dim, 1)
    if task.kind == "span pair":
        layers = nn.Linear(3 * dim, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT), nn.Linear(_HIDDEN, len(task.labels))
        return nn.Sequential(*layers)
    return nn.Linear(dim, len(task.labels))


@dataclass
class ProbeRun:
    """One trained probe."""

    seed: int
    valid: float
    """Best validation score x 100."""
    test: float
    """Test score x 100 of the state with the best validation score."""
    groups: dict[str, float]
    """Test scores x 100 by group."""
    epochs: int
    aggregator_parameters: int
    head_parameters: int
    weights: list[list[float]] = field(default_factory=list)
    """[epoch, source] mean weights of the sources on validation data, before training and after every epoch."""


def standardise(vectors: NDArray[np.float32], rows: NDArray[np.intp]) -> Tensor:
    """Return all vectors with mean 0 and deviation 1 of every dimension over some rows.

    Raw states of a decoder have a few huge dimensions, which no small learning rate suits. A linear map can undo this.
    """
    x = vectors[np.unique(rows)].astype(np.float64)
    deviation = x.std(axis=0)
    deviation = np.where(deviation > 1e-9 * max(deviation.max(), 1e-300), deviation, 1.0)
    return torch.from_numpy(((vectors - x.mean(axis=0)) / deviation).astype(np.float32))


def train_probe(
    inputs: Sequence[Tensor],
    task: TargetTask,
    make: Callable[[], Aggregator],
    config: ProbeConfig,
    seed: int,
    *,
    shuffled: bool = False,
) -> ProbeRun:
    """Train an aggregator and a head, and score the state that is best on validation data.

    Args:
        inputs: [unit, dim] vectors of each source, which are not changed.
        task: The target task.
        make: Makes the aggregator.
        config: How to train.
        seed: Seed of weights, batches, dropout and shuffled labels.
        shuffled: Shuffle the labels of the training examples, as a control.

    Raises:
        DivergedError: The loss is not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _Training(inputs, task, make(), config, seed, shuffled).run()


class _Training:
    """The training of one probe."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        task: TargetTask,
        aggregator: Aggregator,
        config: ProbeConfig,
        seed: int,
        shuffled: bool,
    ) -> None:
        self.inputs, self.task, self.config, self.seed = inputs, task, config, seed
        self.aggregator, self.head = aggregator, make_head(task, aggregator.dim)
        self.probe = nn.ModuleList([self.aggregator, self.head])
        targets = task.train.targets
        if task.kind == "regression":
            targets = (targets - targets.mean()) / targets.std()
        if shuffled:
            targets = np.random.default_rng(seed).permutation(targets)
        self.targets = torch.from_numpy(targets).to(torch.float32 if task.kind == "regression" else torch.int64)
        self.units = torch.from_numpy(task.train.units)
        self.batch_size = min(config.batch_size, max(_SMALLEST_BATCH, len(targets) // _STEPS))

    def run(self) -> ProbeRun:
        """Train until the validation score stops rising."""
        config = self.config
        optimiser = torch.optim.AdamW(
            [
                {"params": list(self.head.parameters()), "lr": config.rate, "weight_decay": 0.0},
                {"params": list(self.aggregator.parameters()), "lr": config.aggregator_rate, "weight_decay": _DECAY},
            ],
            eps=_EPS,
            fused=True,
        )
        n_steps = config.epochs * math.ceil(len(self.targets) / self.batch_size)
        warm_up = max(1, round(_WARM_UP * n_steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            [
                lambda step: max(0.0, 1 - step / n_steps),
                lambda step: min((step + 1) / warm_up, max(0.0, 1 - step / n_steps)),
            ],
        )
        best, best_epoch, state = -math.inf, 0, copy.deepcopy(self.probe.state_dict())
        weights = self._source_weights()
        epoch = 0
        for epoch in range(1, config.epochs + 1):
            self._train_epoch(optimiser, schedule)
            weights += self._source_weights()
            valid = self.task.score(self.task.valid, self.predict(self.task.valid))
            if valid > best:
                best, best_epoch, state = valid, epoch, copy.deepcopy(self.probe.state_dict())
            if epoch >= config.min_epochs and epoch - best_epoch >= config.patience:
                break
        self.probe.load_state_dict(state)
        predicted = self.predict(self.task.test)
        return ProbeRun(
            self.seed,
            best,
            self.task.score(self.task.test, predicted),
            self.task.score_groups(self.task.test, predicted),
            epoch,
            self.aggregator.n_parameters,
            sum(parameter.numel() for parameter in self.head.parameters()),
            weights,
        )

    def _train_epoch(self, optimiser: torch.optim.Optimizer, schedule: Any) -> None:
        self.probe.train()
        for rows in torch.split(torch.randperm(len(self.targets)), self.batch_size):
            optimiser.zero_grad()
            outputs = self._forward(self.units[rows])
            if self.task.kind == "regression":
                loss = functional.mse_loss(outputs[:, 0], self.targets[rows])
            else:
                loss = functional.cross_entropy(outputs, self.targets[rows])
            if not torch.isfinite(loss):
                raise DivergedError("The loss of a probe is not finite; choose a smaller rate.")
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.probe.parameters(), _CLIP)
            optimiser.step()
            schedule.step()

    def _forward(self, units: Tensor) -> Tensor:
        """[row, 1 or 2] units to the outputs of the head."""
        aggregated = [self.aggregator([x[column] for x in self.inputs]) for column in units.unbind(1)]
        outputs: Tensor = self.head(head_features(aggregated, self.task.kind))
        return outputs

    @torch.no_grad()
    def predict(self, split: Split) -> NDArray[Any]:
        """[example] predicted scores or label indices."""
        self.probe.eval()
        outputs = self._forward(torch.from_numpy(split.units)).numpy()
        return outputs[:, 0] if self.task.kind == "regression" else outputs.argmax(axis=1)

    @torch.no_grad()
    def _source_weights(self) -> list[list[float]]:
        """One row: the mean weights of the sources on validation data; none if the aggregator has no weights."""
        units = torch.from_numpy(np.unique(self.task.valid.units))
        weights = self.aggregator.source_weights([x[units] for x in self.inputs])
        return [] if weights is None else [weights.mean(dim=0).tolist()]
