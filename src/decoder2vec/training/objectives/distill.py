"""Distillation: vectors of a model must match those of one or several teachers on plain texts.

Each teacher has a linear map from the model's vector to its own, so dimensions may differ. The map is trained and then
dropped: similarities of the model's vectors follow those of the teacher's because both are cosines of matched vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.batch import move_to_device
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import round_trip, spread_out
from decoder2vec.training.context import InputSpec, Reads, TrainingContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.corpus import CorpusObjective
from decoder2vec.training.objectives.objective import Loss, Metric, ObjectiveConfig
from decoder2vec.training.teachers import Teacher, TeacherVectors, share_teachers

_DEV_BATCH = 256
_HELD_OUT_LOSS = Metric("loss on held-out texts x 100", lower_is_better=True)
_PRECISIONS = ("int8", "binary")


@dataclass(frozen=True)
class DistillConfig(ObjectiveConfig):
    """Match the vectors of teachers."""

    name: str = "distill"
    teachers: tuple[Teacher, ...] = ()
    """[{name = "all-minilm-l6-v2"}], or several with weights."""
    vectors: float = 1.0
    """Weight of 1 - cosine between the teacher's vector and the mapped vector of the model."""
    similarities: float = 0.0
    """Weight of the squared difference of the cosines within a batch."""
    spread: float = 0.0
    """Weight of the spread-out regulariser: cosines of different texts near 0 on average."""
    dims: tuple[int, ...] = ()
    """Matryoshka: lengths of prefixes of the vector that match the teacher, too."""
    precisions: tuple[str, ...] = ()
    """Quantisation-aware: int8, binary; the vectors rounded like that match the teacher, too."""
    centre: bool = True
    """Subtract the mean of a teacher's vectors first, because all of them share a large common part: some teachers give
    any two texts a cosine of 0.7 or more. The loss then depends on the differences between texts alone."""

    def __post_init__(self) -> None:
        weights = {"vectors": self.vectors, "similarities": self.similarities, "spread": self.spread}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise InputError(f"The weight {name} must be 0 or more, not {weight:g}.")
        for precision in self.precisions:
            if precision not in _PRECISIONS:
                raise unknown_name("precision", precision, _PRECISIONS)
        if not (self.vectors or self.similarities):
            raise InputError("A distillation needs a weight above 0 for vectors or similarities.")


class DistillObjective(CorpusObjective[DistillConfig]):
    """Plain texts, by the vectors that teachers give them."""

    names = ("distill",)
    config_class = DistillConfig
    stage = "distillation"
    reads = (Reads.TOKENS, Reads.PREFIX_KV, Reads.LATENTS)

    def __init__(self, config: DistillConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if not config.teachers:
            raise InputError('distill needs a teacher; give --teacher NAME, or objective.teachers=[{name="..."}].')
        self._maps = nn.ModuleList()

    @cached_property
    def teacher_vectors(self) -> list[TeacherVectors]:
        """Vectors of each teacher for training and held-out texts, computed at first use."""
        vectors = []
        with share_teachers():
            for teacher in self.config.teachers:
                vectors.append(TeacherVectors(teacher, self.texts))
                teacher.release()
        return vectors

    def extra_modules(self, context: TrainingContext) -> nn.Module | None:
        """A linear map to the vectors of each teacher; None if only similarities are matched."""
        if not self.config.vectors:
            return None
        with torch.no_grad(), context.forward_context():
            dim = context.encode(context.rows(self.texts[:1]).tolist()).shape[1]
        self._maps = nn.ModuleList([nn.Linear(dim, vectors.dim) for vectors in self.teacher_vectors])
        return self._maps.to(context.device)

    def loss(self, context: TrainingContext) -> Loss:
        """The weighted losses of all teachers on a batch of training texts."""
        rows_of_texts = context.rows(self.texts)

        def loss(rows: Rows) -> Tensor:
            return self._loss(context.encode(rows_of_texts[rows].tolist()).float(), rows)

        return loss

    def _loss(self, vectors: Tensor, rows: Rows) -> Tensor:
        config = self.config
        total = config.spread * spread_out(vectors) if config.spread else vectors.new_zeros(())
        views = matched_views(vectors, config.dims, config.precisions)
        for index, teacher in enumerate(config.teachers):
            targets = move_to_device(self._targets(index, rows), vectors.device)
            if config.vectors:
                cosines = torch.stack([self._cosines(index, view, targets).mean() for view in views])
                total = total + teacher.weight * config.vectors * (1 - cosines).mean()
            if config.similarities:
                distances = torch.stack([similarity_distance(view, targets) for view in views])
                total = total + teacher.weight * config.similarities * distances.mean()
        return total

    def _targets(self, teacher: int, rows: Rows) -> Tensor:
        """[texts, dim] vectors of length 1 that a teacher sets."""
        vectors = self.teacher_vectors[teacher]
        batch = vectors.batch(rows)
        return functional.normalize(batch - vectors.mean, dim=1) if self.config.centre else batch

    def _cosines(self, teacher: int, vectors: Tensor, targets: Tensor) -> Tensor:
        """[texts] cosines between vectors (or prefixes of them), mapped to a teacher's space, and its own vectors."""
        return mapped_cosines(vectors, self._maps[teacher], targets)

    def metric(self, correlation: str) -> Metric:
        """The correlation on dev pairs, else the loss on held-out texts."""
        return super().metric(correlation) if self.data.dev else _HELD_OUT_LOSS

    def dev_metric(self, context: TrainingContext) -> Callable[[], float] | None:
        """Without dev pairs: -100 times the mean loss on held-out texts."""
        if self.data.dev:
            return None
        loss, batches = self.loss(context), self._dev_batches()
        sizes = [len(rows) for rows in batches]
        return lambda: -100 * float(np.average([loss(rows).item() for rows in batches], weights=sizes))

    def _dev_batches(self) -> list[Rows]:
        """The rows of the held-out texts, batch by batch."""
        rows = np.arange(len(self.train_texts), len(self.texts))
        return [rows[start : start + _DEV_BATCH] for start in range(0, len(rows), _DEV_BATCH)]

    def resume_key(self) -> list[Any]:
        """Texts and teachers."""
        return [*super().resume_key(), [vectors.fingerprint for vectors in self.teacher_vectors]]

    @torch.no_grad()
    def report(self, context: TrainingContext) -> dict[str, Any]:
        """The teachers, and the mean cosine to the vectors of each on held-out texts."""
        rows_of_texts, batches = context.rows(self.texts), self._dev_batches()
        vectors = torch.cat([context.encode(rows_of_texts[rows].tolist()).float() for rows in batches])
        rows = np.concatenate(batches)
        teachers = []
        for index, (teacher, targets) in enumerate(zip(self.config.teachers, self.teacher_vectors, strict=True)):
            entry: dict[str, Any] = {"name": teacher.name, "fingerprint": targets.fingerprint}
            if self.config.vectors:
                cosines = self._cosines(index, vectors, self._targets(index, rows).to(vectors.device))
                entry["cosine"] = round(float(cosines.mean()), 4)
            teachers.append(entry)
        return {"teachers": teachers}


def matched_views(vectors: Tensor, dims: Sequence[int], precisions: Sequence[str]) -> list[Tensor]:
    """The vectors, their prefixes of some lengths, and the vectors rounded: all that is to match a teacher."""
    prefixes = [vectors[:, :width] for width in dims]
    return [vectors, *prefixes, *(round_trip(vectors, precision) for precision in precisions)]


def mapped_cosines(vectors: Tensor, linear: Any, targets: Tensor) -> Tensor:
    """[texts] cosines between vectors, or prefixes of them, in the space that a linear map leads to, and targets."""
    mapped = functional.linear(vectors, linear.weight[:, : vectors.shape[1]], linear.bias)
    return functional.cosine_similarity(mapped, targets)


def similarity_distance(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference of the cosines of all pairs in a batch, without each text's cosine to itself."""
    student, teacher = (functional.normalize(side, dim=1) for side in (vectors, targets))
    difference = student @ student.T - teacher @ teacher.T
    count = len(vectors)
    return difference.square().sum() / max(1, count * (count - 1))
