"""What every lesson is: texts to read, examples in batches, and a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows, batches_of
from decoder2vec.training.paths import Path

Loss = Callable[[Rows], Tensor]


@dataclass(frozen=True)
class Classroom:
    """What a lesson is held in, once its texts are tokenised and the model is adapted."""

    backbone: Backbone
    """Adapted."""
    path: Path
    """Numbers of texts to their vectors."""
    prompts: list[Prompt]
    place: dict[str, int]
    """The number of each text."""

    def places(self, texts: list[str]) -> Any:
        """[text] numbers."""
        return np.array([self.place[text] for text in texts], np.intp)


class Lesson(ABC):
    """A lesson that a recipe's objective asks for, from some data."""

    stage: ClassVar[str]
    """What it is called while it is held."""

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        self.recipe, self.objective, self.data = recipe, recipe.objective, data

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """Every text that is read."""

    @abstractmethod
    def __len__(self) -> int:
        """How many examples there are."""

    @abstractmethod
    def loss(self, room: Classroom) -> Loss:
        """The loss of a batch, given its examples' numbers."""

    @abstractmethod
    def identity(self) -> list[Any]:
        """All that it depends on, as JSON can say it."""

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """Examples in the order of an epoch, in batches."""
        return batches_of(order, size)

    def around(self, room: Classroom) -> AbstractContextManager[Any]:
        """Open around each step, but not around what is scored."""
        return nullcontext()

    def trained_too(self, room: Classroom) -> nn.Module | None:
        """What is trained besides the adapter, and needed no more afterwards."""
        return None

    def report(self, room: Classroom) -> dict[str, Any]:
        """What there is to say when it is over."""
        return {}

    def own_score(self, room: Classroom) -> Callable[[], float] | None:
        """What says that it got better, where that is not the correlation on dev pairs; higher is better."""
        return None
