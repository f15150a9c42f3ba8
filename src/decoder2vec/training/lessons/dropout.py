"""SimCSE: a text read twice, with other attention weights dropped each time, shall find itself among the others.

Gao, Yao and Chen, 2021. Decoders of today are trained without dropout, so it is switched on in the attention for this
lesson, and two readings are seen to differ before it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.dropout import attention_dropout
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.maths.objectives import info_nce, matryoshka
from decoder2vec.recipes.adapting import Adapting, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.corpus import set_aside
from decoder2vec.training.lessons.lesson import Classroom, Lesson, Loss
from decoder2vec.training.loop import Rows

_AT_ONCE = 64
"""Texts among which one that was set aside has to find itself."""


class DropoutLesson(Lesson):
    """Plain texts, by InfoNCE of a text with itself."""

    stage = "texts"

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        if recipe.reads is not Reads.TOKENS:
            raise InputError(
                "simcse reads every token in every step, and soft prompts remember them; use lora or full."
            )
        self.learned, self.apart = set_aside(data.texts, "simcse")

    @property
    def texts(self) -> list[str]:
        """Those that are learned from, and those that are set aside."""
        return [*self.learned, *self.apart]

    def __len__(self) -> int:
        return len(self.learned)

    def loss(self, room: Classroom) -> Loss:
        """Both readings of all texts are made in one pass."""
        places = room.places(self.learned)
        with self.around(room), torch.no_grad():
            one, other = room.path([int(places[0])] * 2)
        if torch.allclose(one, other, rtol=0, atol=1e-6):
            raise UnsupportedError(
                f"Dropout in the attention of {room.backbone.family} cannot be switched on: "
                "a text read twice has the same vector."
            )
        return lambda rows: self._contrast(room, places[rows])

    def _contrast(self, room: Classroom, places: Any) -> Tensor:
        vectors = room.path([*places.tolist(), *places.tolist()])
        distance = matryoshka(info_nce, self.objective.dims) if self.objective.dims else info_nce
        one, other = vectors.chunk(2)
        return distance(one, other, None, temperature=self.objective.temperature)

    def around(self, room: Classroom) -> AbstractContextManager[Any]:
        """Attention weights are dropped."""
        return attention_dropout(room.backbone, self.objective.dropout)

    def own_score(self, room: Classroom) -> Callable[[], float] | None:
        """Without dev pairs: how well texts that were set aside find themselves, dropped weights the same each time."""
        if self.data.dev:
            return None
        places = room.places(self.apart)

        def score() -> float:
            devices = [room.backbone.device] if room.backbone.device.type == "cuda" else []
            with torch.random.fork_rng(devices), self.around(room):
                torch.manual_seed(0)
                parts = [places[begin : begin + _AT_ONCE] for begin in range(0, len(places), _AT_ONCE)]
                return -float(np.mean([self._contrast(room, part).item() for part in parts if len(part) > 1]))

        return score

    def batches(self, order: Rows, size: int) -> Any:
        """A batch of one text has nothing to contrast with."""
        return (rows for rows in super().batches(order, size) if len(rows) > 1)

    def identity(self) -> list[Any]:
        """The texts are all there is."""
        return [len(self.learned)]
