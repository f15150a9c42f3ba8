"""SimCSE: a text encoded twice, with different attention weights dropped, must find itself among the others.

Gao, Yao and Chen, 2021. Today's decoders are trained without dropout, so it is enabled in the attention for training
steps, and the two encodings of a text are checked to differ before training starts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoder2vec.backbone.block_modes import attention_dropout
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.training.context import TokenContext
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.objective import Loss
from decoder2vec.training.objectives.two_views import TwoViewsObjective


@dataclass(frozen=True)
class SimCSEConfig(ContrastiveConfig):
    """InfoNCE of a text with itself under dropout."""

    name: str = "simcse"
    dropout: float = 0.3
    """Share of attention weights that is dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.dropout < 1:
            raise InputError(f"The share of dropped attention weights lies between 0 and 1, not at {self.dropout:g}.")


class SimCSEObjective(TwoViewsObjective[SimCSEConfig]):
    """Plain texts, by InfoNCE of a text with itself."""

    names = ("simcse",)
    config_class = SimCSEConfig
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

        def loss(rows: Rows) -> Tensor:
            texts = rows_of_texts[rows].tolist()
            return self.contrast(context.encode([*texts, *texts]))

        return loss

    def dev_views(self, context: TokenContext) -> tuple[Rows, Rows]:
        """Each held-out text twice."""
        rows = context.rows(self.dev_texts)
        return rows, rows

    def step_context(self, context: TokenContext) -> AbstractContextManager[Any]:
        """Attention weights are dropped."""
        return attention_dropout(context.backbone, self.config.dropout)
