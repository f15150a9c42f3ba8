"""Scored pairs: the cosines of their vectors shall stand in the order of the scores, or be equal to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import PAIR_LOSSES, matryoshka_loss
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.lesson import Classroom, Lesson, Loss
from decoder2vec.training.loop import Rows


class ScoreLesson(Lesson):
    """Pairs with scores, by CoSENT, AnglE or a squared distance."""

    stage = "pairs"

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        if data.train is None:
            name = recipe.objective.name
            raise InputError(f"{name} learns from scored pairs; give some, or set the objective to info_nce.")
        self.pairs = data.train

    @property
    def texts(self) -> list[str]:
        """Of all pairs."""
        return self.pairs.texts()

    def __len__(self) -> int:
        return len(self.pairs)

    def loss(self, room: Classroom) -> Loss:
        """A text that stands more than once in a batch is read once."""
        left, right = room.places(self.pairs.left), room.places(self.pairs.right)
        scores = torch.from_numpy(self.data.fraction(self.pairs.scores))
        plain = PAIR_LOSSES[self.objective.name]
        distance = matryoshka_loss(plain, self.objective.dims) if self.objective.dims else plain

        def loss(rows: Rows) -> Tensor:
            different, inverse = np.unique(np.concatenate([left[rows], right[rows]]), return_inverse=True)
            vectors = room.path(different.tolist())[torch.from_numpy(inverse)]
            return distance(vectors[: len(rows)], vectors[len(rows) :], scores[rows].to(vectors.device))

        return loss

    def identity(self) -> list[Any]:
        """Texts, scores and their scale."""
        return [vars(self.pairs), list(self.data.scale)]
