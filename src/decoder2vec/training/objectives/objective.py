"""The protocol of objectives: the data they need, their batches, loss and dev metric, and what resuming depends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from decoder2vec.errors import InputError
from decoder2vec.training.context import InputSpec, Reads, TrainingContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows, Schedule, TrainingTask, fixed_size_batches

Loss = Callable[[Rows], Tensor]
"""The loss of a batch, given the indices of its examples."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """Settings of an objective: the table `objective` of a recipe. `name` chooses the objective."""

    name: str

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> ObjectiveConfig:
        """The settings of the objective that the table names."""
        from decoder2vec.training.objectives import objective_config

        return objective_config(table, where)


@dataclass(frozen=True)
class Metric:
    """By what the states of a training are selected, for its results and figures."""

    name: str
    """With the unit, as on the axis of a figure."""
    lower_is_better: bool = False
    """Then the scores of a history are minus the metric: the loop maximises them."""


HELD_OUT_LOSS = Metric("loss on held-out texts", lower_is_better=True)


Config = TypeVar("Config", bound=ObjectiveConfig)
Context = TypeVar("Context", bound=TrainingContext)


class Objective(ABC, Generic[Config, Context]):
    """What a model learns, and from which data.

    An objective is made before any text is read: it checks the data and lists its texts. Once the recipe has attached
    itself to the model, the methods that take a context give the loss and the dev metric.
    """

    names: ClassVar[tuple[str, ...]]
    """Names in a plan."""
    config_class: ClassVar[type[ObjectiveConfig]]
    needs: ClassVar[str]
    """Which of `DATA_KINDS` it learns from."""
    stage: ClassVar[str]
    """Name in logs and progress bars."""
    reads: ClassVar[tuple[Reads, ...]] = (Reads.TOKENS, Reads.PREFIX_KV, Reads.LATENTS)
    """Which kinds of recipes can learn it."""
    unreadable: ClassVar[str] = "learns vectors of texts; use a recipe that makes an encoder, such as lora"
    """Why other recipes cannot, for the error message."""
    predicts_tokens: ClassVar[bool] = False
    """Whether it needs the language-model head, and with it the whole vocabulary."""
    draws_texts: ClassVar[bool] = False
    """Whether it makes new texts in every step, so that their tokens are not known before."""
    needs_dev: ClassVar[bool] = True
    """Whether states are selected on dev pairs; else there is a metric on held-out examples."""

    def __init__(self, config: Config, data: TrainingData, spec: InputSpec) -> None:
        """Check the data, and how the recipe reads texts.

        Args:
            config: Settings of the objective.
            data: What it learns from.
            spec: How the recipe reads texts.

        Raises:
            InputError: The data or the recipe does not fit.

        """
        if spec.reads not in self.reads:
            raise InputError(f"{config.name} {self.unreadable}.")
        if self.needs_dev and not data.dev:
            raise InputError(f"{config.name} needs scored pairs to select the best state on; give dev pairs.")
        self.config, self.data, self.spec = config, data, spec

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """About how many examples the data hold; None if that is known only once they are prepared."""
        return None

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """Every text that is encoded in training."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def loss(self, context: Context) -> Loss:
        """The loss of a batch, given the indices of its examples."""

    @abstractmethod
    def resume_key(self) -> list[Any]:
        """Data and settings outside the recipe, as JSON: a checkpoint is resumed only if they are the same."""

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """Split the shuffled examples of an epoch into batches."""
        return fixed_size_batches(order, size)

    def dev_metric(self, context: Context) -> Callable[[], float] | None:
        """A metric by which states are selected, higher is better; None: the correlation on dev pairs."""
        return None

    def metric(self, correlation: str) -> Metric:
        """What the scores of its histories are; by default the correlation on dev pairs."""
        return Metric(f"{correlation.capitalize()} on dev x 100")

    def step_context(self, context: Context) -> AbstractContextManager[Any]:
        """Active during training steps, but not during evaluations."""
        return nullcontext()

    def extra_modules(self, context: Context) -> nn.Module | None:
        """What is trained besides the recipe's module, and not needed afterwards."""
        return None

    def report(self, context: Context) -> dict[str, Any]:
        """Results for the results file, after training."""
        return {}


def training_task(
    objective: Objective[Any, Any], context: TrainingContext, schedule: Schedule, metric: str
) -> TrainingTask:
    """The objective as the training loop runs it.

    Args:
        objective: What is learned.
        context: The model that learns it.
        schedule: Epochs, batch size, learning rate.
        metric: The correlation on dev pairs by which states are selected, unless the objective has its own metric.

    """
    with context.forward_context():
        loss = objective.loss(context)
        own_metric = objective.dev_metric(context)

    @torch.no_grad()
    def dev_metric() -> float:
        with context.forward_context():
            return own_metric() if own_metric else context.dev_score(objective.data.dev, metric)

    @contextmanager
    def step_context() -> Iterator[None]:
        with context.forward_context(), objective.step_context(context), context.block_modes():
            yield

    return TrainingTask(
        objective.stage,
        len(objective),
        loss,
        dev_metric,
        schedule,
        objective.batches,
        step_context,
        is_sharded=context.is_sharded,
    )


def trained_module(objective: Objective[Any, Any], context: TrainingContext) -> nn.Module:
    """The recipe's module, together with the extra modules of the objective if there are any."""
    extra = objective.extra_modules(context)
    return context.module if extra is None else nn.ModuleList([context.module, extra])
