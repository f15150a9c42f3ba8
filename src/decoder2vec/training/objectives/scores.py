"""Scored pairs: similarities must follow human scores, in order or in value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import PAIR_LOSSES, SCORE_LOSSES, matryoshka_loss
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.context import InputSpec, LatentContext, Reads, TrainingContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Objective, ObjectiveConfig


@dataclass(frozen=True)
class ScoresConfig(ObjectiveConfig):
    """A loss on the vectors of scored pairs."""

    name: str = "cosent"
    """cosent, angle or cosine_mse."""
    dims: tuple[int, ...] = ()
    """Matryoshka: prefixes of these lengths are trained, and nothing else: the full width must be among them."""


class ScoresObjective(Objective[ScoresConfig, TrainingContext]):
    """Scored pairs, by CoSENT, AnglE or the squared error of the cosine."""

    names = tuple(PAIR_LOSSES)
    config_class = ScoresConfig
    needs = "pairs"
    stage = "pairs"

    def __init__(self, config: ScoresConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if data.train is None:
            raise InputError(f"{config.name} learns from scored pairs; give some, or set the objective to info_nce.")
        self.pairs = data.train

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """The number of pairs."""
        return len(data.train) if data.train else None

    @property
    def texts(self) -> list[str]:
        """Texts of all pairs."""
        return self.pairs.texts()

    def __len__(self) -> int:
        return len(self.pairs)

    def loss(self, context: TrainingContext) -> Loss:
        """The loss of the vectors of a batch; a text that occurs more than once is encoded once."""
        left, right = context.rows(self.pairs.left), context.rows(self.pairs.right)
        scores = torch.from_numpy(self.data.unit_scores(self.pairs.scores))
        pair_loss = PAIR_LOSSES[self.config.name]
        if self.config.dims:
            pair_loss = matryoshka_loss(pair_loss, self.config.dims)

        def loss(rows: Rows) -> Tensor:
            unique, inverse = np.unique(np.concatenate([left[rows], right[rows]]), return_inverse=True)
            vectors = context.encode(unique.tolist())[torch.from_numpy(inverse)]
            return pair_loss(vectors[: len(rows)], vectors[len(rows) :], scores[rows].to(vectors.device))

        return loss

    def resume_key(self) -> list[Any]:
        """Texts, scores and their scale."""
        return [vars(self.pairs), list(self.data.scale)]


@dataclass(frozen=True)
class PairHeadConfig(ObjectiveConfig):
    """Settings of `PairHeadObjective`."""

    name: str = "pair_head"
    loss: str = "log_variance"
    """mse, log_variance, pearson or cosent."""
    choose_by: str = "spearman"
    """The dev correlation by which states are selected."""

    def __post_init__(self) -> None:
        if self.loss not in SCORE_LOSSES:
            raise unknown_name("loss", self.loss, SCORE_LOSSES)


class PairHeadObjective(Objective[PairHeadConfig, LatentContext]):
    """Scored pairs, by a loss on the scores that the pair head of a code network gives them (FREEZE)."""

    names = ("pair_head",)
    config_class = PairHeadConfig
    needs = "pairs"
    stage = "pairs"
    reads = (Reads.LATENTS,)
    unreadable = "trains the pair head of cached latents; use the recipe freeze"

    def __init__(self, config: PairHeadConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if data.train is None:
            raise InputError("A pair head learns from scored pairs; give some.")
        self.pairs: ScoredPairs = data.train

    @property
    def texts(self) -> list[str]:
        """Texts of all pairs."""
        return self.pairs.texts()

    def __len__(self) -> int:
        return len(self.pairs)

    def loss(self, context: LatentContext) -> Loss:
        """The loss of the scores; with the head "each", the sum over the layers' own scores."""
        pairs = context.pair_rows(self.pairs)
        targets = torch.from_numpy(self.data.unit_scores(self.pairs.scores)).to(context.device)
        score_loss = SCORE_LOSSES[self.config.loss]

        def loss(rows: Rows) -> Tensor:
            scores = context.score(pairs.left[rows], pairs.right[rows])
            target = targets[torch.from_numpy(rows).to(context.device)]
            if scores.ndim == 2:
                return torch.stack([score_loss(column, target) for column in scores.T]).sum()
            return score_loss(scores, target)

        return loss

    def dev_metric(self, context: LatentContext) -> Callable[[], float]:
        """Correlation of the scores; with the head "each", that of the best layer."""
        dev = [context.pair_rows(pairs) for pairs in self.data.dev]
        return lambda: float(context.dev_scores(dev, self.config.choose_by).max())

    def resume_key(self) -> list[Any]:
        """Texts, scores and their scale."""
        return [vars(self.pairs), list(self.data.scale)]
