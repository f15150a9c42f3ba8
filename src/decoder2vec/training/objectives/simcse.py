"""SimCSE: a text encoded twice, with different attention weights dropped, must find itself among the others.

Gao, Yao and Chen, 2021. Today's decoders are trained without dropout, so it is enabled in the attention for training
steps, and the two encodings of a text are checked to differ before training starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.training_modes import attention_dropout
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.maths.losses import info_nce, matryoshka_loss
from decoder2vec.training import distributed
from decoder2vec.training.context import TokenContext
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.contrastive import check_temperature
from decoder2vec.training.objectives.corpus import CorpusObjective
from decoder2vec.training.objectives.objective import Loss, ObjectiveConfig

_DEV_BATCH = 64
"""Texts among which a held-out text must find itself."""


@dataclass(frozen=True)
class SimCSEConfig(ObjectiveConfig):
    """InfoNCE of a text with itself under dropout."""

    name: str = "simcse"
    temperature: float = 0.05
    symmetric: bool = False
    """Also let the second encoding find the first."""
    dims: tuple[int, ...] = ()
    """Matryoshka: lengths of prefixes of the vector that are trained as vectors, too."""
    dropout: float = 0.3
    """Share of attention weights that is dropped."""

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 < self.dropout < 1:
            raise InputError(f"The share of dropped attention weights lies between 0 and 1, not at {self.dropout:g}.")


class SimCSEObjective(CorpusObjective[SimCSEConfig]):
    """Plain texts, by InfoNCE of a text with itself."""

    names = ("simcse",)
    config_class = SimCSEConfig
    stage = "texts"
    unreadable = "encodes every token in every step, not only a soft prompt; use lora, kv_prefix or full"

    def loss(self, context: TokenContext) -> Loss:
        """InfoNCE of two encodings of each text, which are computed in one pass.

        Raises:
            UnsupportedError: The two encodings are equal, since the model's attention drops no weights.

        """
        rows_of_texts = context.rows(self.train_texts)
        longest = max(rows_of_texts.tolist(), key=lambda row: len(context.prompts[row].ids))  # short ones may lose none
        with self.step_context(context), torch.no_grad():
            first, second = context.encode([longest] * 2)
        if torch.allclose(first, second, rtol=0, atol=1e-6):
            raise UnsupportedError(
                f"Dropout in the attention of {context.backbone.family} cannot be enabled: "
                "a text encoded twice has the same vector."
            )
        return lambda rows: self._contrast(context, rows_of_texts[rows])

    def _contrast(self, context: TokenContext, rows: Rows) -> Tensor:
        with _different_dropout_per_process(context.device):
            vectors = context.encode([*rows.tolist(), *rows.tolist()])
        config = self.config
        contrast = matryoshka_loss(info_nce, config.dims) if config.dims else info_nce
        first, second = vectors.chunk(2)
        return contrast(first, second, None, temperature=config.temperature, symmetric=config.symmetric)

    def step_context(self, context: TokenContext) -> AbstractContextManager[Any]:
        """Attention weights are dropped."""
        return attention_dropout(context.backbone, self.config.dropout)

    def dev_metric(self, context: TokenContext) -> Callable[[], float] | None:
        """Without dev pairs: how well held-out texts find themselves, with the same dropout in every evaluation."""
        if self.data.dev:
            return None
        rows = context.rows(self.dev_texts)

        def score() -> float:
            with _seeded(0, context.device), self.step_context(context):
                batches = [rows[start : start + _DEV_BATCH] for start in range(0, len(rows), _DEV_BATCH)]
                return -float(np.mean([self._contrast(context, batch).item() for batch in batches if len(batch) > 1]))

        return score

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """A batch of one text has nothing to contrast with."""
        return (rows for rows in super().batches(order, size) if len(rows) > 1)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside the block; afterwards the previous state is restored."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _different_dropout_per_process(device: torch.device) -> Iterator[None]:
    """Give each process random numbers of its own while they share a batch.

    All processes start from the same random state and would drop the same weights: where one encodes the first copy
    of a text and another the second, both copies would be equal.
    """
    if distributed.world_size() == 1 or not torch.is_grad_enabled():
        yield
        return
    with _seeded(int(torch.randint(2**62, ())) + distributed.rank(), device):
        yield
