"""SimCSE: a text read twice, with other attention weights dropped each time, shall find itself among the others.

Gao, Yao and Chen, 2021. Decoders of today are trained without dropout, so it is switched on in the attention for this
lesson, and two readings are seen to differ before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.training_modes import attention_dropout
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.maths.losses import info_nce, matryoshka_loss
from decoder2vec.recipes.adapting import Adapting, Reads
from decoder2vec.training import processes
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.corpus import CorpusLesson
from decoder2vec.training.lessons.lesson import Classroom, Loss
from decoder2vec.training.loop import Rows

_AT_ONCE = 64
"""Texts among which one that was set aside has to find itself."""


class DropoutLesson(CorpusLesson):
    """Plain texts, by InfoNCE of a text with itself."""

    stage = "texts"

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        if recipe.reads is not Reads.TOKENS:
            raise InputError(
                "simcse reads every token in every step, and soft prompts remember them; use lora or full."
            )

    def loss(self, room: Classroom) -> Loss:
        """Both readings of all texts are made in one pass."""
        places = room.places(self.learned)
        longest = max(places.tolist(), key=lambda place: len(room.prompts[place].ids))  # short ones may lose nothing
        with self.around(room), torch.no_grad():
            one, other = room.path([longest] * 2)
        if torch.allclose(one, other, rtol=0, atol=1e-6):
            raise UnsupportedError(
                f"Dropout in the attention of {room.backbone.family} cannot be switched on: "
                "a text read twice has the same vector."
            )
        return lambda rows: self._contrast(room, places[rows])

    def _contrast(self, room: Classroom, places: Any) -> Tensor:
        with _own_numbers(room.backbone.device):
            vectors = room.path([*places.tolist(), *places.tolist()])
        objective = self.objective
        distance = matryoshka_loss(info_nce, objective.dims) if objective.dims else info_nce
        one, other = vectors.chunk(2)
        return distance(one, other, None, temperature=objective.temperature, symmetric=objective.symmetric)

    def around(self, room: Classroom) -> AbstractContextManager[Any]:
        """Attention weights are dropped."""
        return attention_dropout(room.backbone, self.objective.dropout)

    def own_score(self, room: Classroom) -> Callable[[], float] | None:
        """Without dev pairs: how well texts that were set aside find themselves, dropped weights the same each time."""
        if self.data.dev:
            return None
        places = room.places(self.apart)

        def score() -> float:
            with _numbers_from(0, room.backbone.device), self.around(room):
                parts = [places[begin : begin + _AT_ONCE] for begin in range(0, len(places), _AT_ONCE)]
                return -float(np.mean([self._contrast(room, part).item() for part in parts if len(part) > 1]))

        return score

    def batches(self, order: Rows, size: int) -> Any:
        """A batch of one text has nothing to contrast with."""
        return (rows for rows in super().batches(order, size) if len(rows) > 1)


@contextmanager
def _numbers_from(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed for a time; then those from before go on."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _own_numbers(device: torch.device) -> Iterator[None]:
    """Of several processes each has random numbers of its own for a time, where they share a batch.

    They begin with the same numbers and would drop the same weights: one from the first reading of a text, another from
    the second, which would be the same reading.
    """
    if processes.count() == 1 or not torch.is_grad_enabled():
        yield
        return
    with _numbers_from(int(torch.randint(2**62, ())) + processes.rank(), device):
        yield
