"""What SimCSE and crops share: two views of a text must find each other among the texts of their batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from decoder2vec.training.context import TokenContext
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.corpus import CorpusObjective
from decoder2vec.training.objectives.objective import HELD_OUT_LOSS, Metric

_DEV_BATCH = 64
"""Texts among which the views of a held-out text must find each other."""

ViewsConfig = TypeVar("ViewsConfig", bound=ContrastiveConfig)


class TwoViewsObjective(CorpusObjective[ViewsConfig]):
    """Plain texts, by InfoNCE of two views of each text."""

    stage = "texts"

    def contrast(self, vectors: Tensor) -> Tensor:
        """InfoNCE of a batch: the first views of its texts, then the second views in the same order."""
        first, second = vectors.chunk(2)
        return self.config.info_nce(first, second)

    @abstractmethod
    def dev_views(self, context: TokenContext) -> tuple[Rows, Rows]:
        """Rows of the first and of the second view of each held-out text."""

    def metric(self, correlation: str) -> Metric:
        """The correlation on dev pairs, else the loss on held-out texts."""
        return super().metric(correlation) if self.data.dev else HELD_OUT_LOSS

    def dev_metric(self, context: TokenContext) -> Callable[[], float] | None:
        """Without dev pairs: how well views of held-out texts find each other, the same views in every evaluation."""
        if self.data.dev:
            return None
        first, second = self.dev_views(context)
        batches = [slice(start, start + _DEV_BATCH) for start in range(0, len(first), _DEV_BATCH)]

        def score() -> float:
            with seeded(0, context.device), self.step_context(context):
                losses = [
                    self.contrast(context.encode([*first[batch].tolist(), *second[batch].tolist()])).item()
                    for batch in batches
                    if len(first[batch]) > 1
                ]
                return -float(np.mean(losses))

        return score

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """A batch of one text has nothing to contrast with."""
        return (rows for rows in super().batches(order, size) if len(rows) > 1)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside the block; afterwards the previous state is restored."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
