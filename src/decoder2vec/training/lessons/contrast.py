"""Texts that belong together shall find each other among the rest of their batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import info_nce, matryoshka_loss
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.lesson import Classroom, Lesson, Loss
from decoder2vec.training.loop import Rows


class ContrastLesson(Lesson):
    """Pairs and triplets, by InfoNCE."""

    stage = "triplets"

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        if data.contrast is None:
            raise InputError("info_nce learns from texts that belong together; give triplets or pairs of such texts.")
        self.contrast = data.contrast

    @property
    def texts(self) -> list[str]:
        """Of all examples."""
        return self.contrast.texts

    def __len__(self) -> int:
        return len(self.contrast)

    def loss(self, room: Classroom) -> Loss:
        """A text that stands more than once in a batch is read once."""
        contrast, objective = self.contrast, self.objective
        places = room.places(contrast.texts)
        distance = matryoshka_loss(info_nce, objective.dims) if objective.dims else info_nce

        def loss(rows: Rows) -> Tensor:
            numbers = np.concatenate(
                [contrast.anchors[rows], contrast.positives[rows], contrast.negatives[rows].T.ravel()]
            )
            different, inverse = np.unique(places[numbers.clip(min=0)], return_inverse=True)
            vectors = room.path(different.tolist())[torch.from_numpy(inverse)]
            anchors, positives, rest = vectors.tensor_split([len(rows), 2 * len(rows)])
            negatives = rest.view(-1, len(rows), vectors.shape[1]).transpose(0, 1) if len(rest) else None
            masked = torch.from_numpy(contrast.known_positives(rows)).to(vectors.device)
            return distance(
                anchors,
                positives,
                negatives,
                temperature=objective.temperature,
                symmetric=objective.symmetric,
                masked=masked,
            )

        return loss

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """Batches without a text twice; what is left at the end in crumbs too small to contrast waits for an epoch."""
        found = list(self.contrast.batches(order, size))
        large = [rows for rows in found if len(rows) >= max(2, size // 8)]
        yield from large or found

    def identity(self) -> list[Any]:
        """The numbers of all examples."""
        contrast = self.contrast
        numbers = [part.tolist() for part in (contrast.anchors, contrast.positives, contrast.negatives)]
        return numbers + [part.tolist() for part in contrast.groups.nonzero()]
