"""MNTP (masked next token prediction): each masked token is predicted from the state of the token before it.

BehnamGhader et al., "LLM2Vec", 2024. The shift by one keeps what a decoder knows: it has always predicted the next
token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.errors import InputError
from decoder2vec.training.context import InputSpec, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.corpus import NEEDS_TOKEN_STATES, CorpusObjective, require_token_states
from decoder2vec.training.objectives.masking import ConceptMasking, MaskedText, MaskingConfig, RandomMasking
from decoder2vec.training.objectives.objective import HELD_OUT_LOSS, Loss, Metric, ObjectiveConfig
from decoder2vec.training.objectives.token_states import TokenStates, sum_over_texts


@dataclass(frozen=True)
class MNTPConfig(ObjectiveConfig):
    """Masked next token prediction."""

    name: str = "mntp"
    masking: MaskingConfig = field(default_factory=MaskingConfig)


class MNTPObjective(CorpusObjective[MNTPConfig]):
    """Plain texts, by the cross-entropy of their masked tokens."""

    names = ("mntp",)
    predicts_tokens = True
    config_class = MNTPConfig
    stage = "masked texts"
    unreadable = NEEDS_TOKEN_STATES

    def __init__(self, config: MNTPConfig, data: TrainingData, spec: InputSpec) -> None:
        require_token_states(config.name, spec)
        super().__init__(config, data, spec)
        self._prepared: tuple[TokenContext, RandomMasking, TokenPredictor] | None = None

    def loss(self, context: TokenContext) -> Loss:
        """Mean cross-entropy of masked tokens, which are chosen again in every step."""
        masking, predict = self._prepare(context)
        rows_of_texts = context.rows(self.train_texts).tolist()
        usable = np.array([bool(masking.maskable(context.prompts[row].ids)) for row in rows_of_texts])
        if not usable.any():
            raise InputError(f"{self._nothing_to_mask()} Give other texts.")

        def loss(rows: Rows) -> Tensor:
            chosen = [rows_of_texts[row] for row in rows if usable[row]] or [rows_of_texts[int(usable.argmax())]]
            return predict(masking([context.prompts[row].ids for row in chosen]), chosen)

        return loss

    def metric(self, correlation: str) -> Metric:
        """The loss on held-out texts, also where there are dev pairs."""
        return HELD_OUT_LOSS

    def dev_metric(self, context: TokenContext) -> Callable[[], float]:
        """Minus the loss on held-out texts, with the same masked tokens in every evaluation."""
        masking, predict = self._prepare(context)
        rows = [row for row in context.rows(self.dev_texts).tolist() if masking.maskable(context.prompts[row].ids)]
        if not rows:
            raise InputError(f"Of the held-out texts: {self._nothing_to_mask()} Give more of them.")
        masked = masking([context.prompts[row].ids for row in rows], torch.Generator().manual_seed(0))
        return lambda: -float(predict(masked, rows))

    def resume_key(self) -> list[Any]:
        """The texts, and the concepts that are masked."""
        return [*super().resume_key(), sorted(self.data.concepts.concepts) if self.data.concepts else []]

    def _masking(self, context: TokenContext) -> RandomMasking:
        config, concepts = self.config.masking, self.data.concepts
        if concepts is None:
            return RandomMasking(config, context.backbone)
        masking = ConceptMasking(config, context.backbone, concepts, self.texts, context.prompts_of(self.texts))
        if not any(masking.occurrences.values()):  # with fill = "random", random tokens alone would be masked
            raise InputError(f"{self._nothing_to_mask()} Give other texts.")
        return masking

    def _nothing_to_mask(self) -> str:
        if self.data.concepts:
            return "No text has one of the concepts behind its first token: other concepts may fit these texts."
        return "No text has two tokens, so none can be predicted from another."

    def _prepare(self, context: TokenContext) -> tuple[RandomMasking, TokenPredictor]:
        """Masking and predictor, made once per context, since a trained copy of the model has its own LM head."""
        if self._prepared is None or self._prepared[0] is not context:
            self._prepared = context, self._masking(context), TokenPredictor(context)
        return self._prepared[1:]


class TokenPredictor:
    """Mean cross-entropy of masked tokens; only the states before them go through the LM head."""

    def __init__(self, context: TokenContext) -> None:
        self.context, self.states, self.head = context, TokenStates(context), LMHead(context.backbone)

    def __call__(self, texts: Sequence[MaskedText], rows: Sequence[int]) -> Tensor:
        """The loss of masked texts with these rows; texts without a masked token are not run, unless all are."""
        n_masked = max(1, sum(len(text.positions) for text in texts))
        used = [index for index, text in enumerate(texts) if text.positions] or [0]

        def sum_of_chunk(chunk: list[int]) -> Tensor:
            return self._loss_sum([texts[used[index]] for index in chunk], [rows[used[index]] for index in chunk])

        return sum_over_texts(self.context, [len(texts[index].ids) for index in used], sum_of_chunk) / n_masked

    def _loss_sum(self, texts: Sequence[MaskedText], rows: Sequence[int]) -> Tensor:
        prompts = [self.context.prompts[row] for row in rows]
        states = self.states([replace(prompt, ids=text.ids) for prompt, text in zip(prompts, texts, strict=True)])
        targets = [
            (index, position, prompts[index].ids[position])
            for index, text in enumerate(texts)
            for position in text.positions
        ]
        indices, positions, tokens = torch.tensor(targets, dtype=torch.long, device=states.device).view(-1, 3).unbind(1)
        return self.head.cross_entropy(states[indices, positions - 1], tokens)
