"""Punctuation restoration as language modelling: the original text is generated behind the cleared one.

The form of Min, Lee, Lee and Lee, who train an encoder-decoder: here the cleared text is read with bidirectional
attention, and the tokens generated behind it see all of it and the tokens generated before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoder2vec.backbone.attention import check_prefix_lm_attention, parse_attention, prefix_lm_attention
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.vocabulary import check_token_ids
from decoder2vec.errors import InputError
from decoder2vec.text.batches import plan_batches
from decoder2vec.text.punctuation import RestorationScore, aligned_words, score_restoration, strip_punctuation
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.context import InputSpec, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, ObjectiveConfig
from decoder2vec.training.objectives.punctuation import ClearedTextObjective
from decoder2vec.training.objectives.token_states import TokenStates, sum_over_texts

_MAX_GENERATED = 50
"""At most this many held-out texts are generated, token by token, for the report."""
_GENERATE_TOGETHER = 5
_MAX_TOKENS_READ = 100_000
"""After reading this many tokens no further text is begun: a model that rejects every draft would take hours."""
_EXTRA_TOKENS = 16
"""Generation stops at the length of the true text plus this."""
_NONE_FITS = "No text fits twice, once cleared and once as it was."


@dataclass(frozen=True)
class PunctuationLMConfig(ObjectiveConfig):
    """Punctuation restoration as language modelling."""

    name: str = "punctuation_lm"


class PunctuationLMObjective(ClearedTextObjective[PunctuationLMConfig]):
    """The cross-entropy of the original text's tokens behind the cleared text."""

    names = ("punctuation_lm",)
    predicts_tokens = True
    config_class = PunctuationLMConfig

    def __init__(self, config: PunctuationLMConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec, copies=2)
        if parse_attention(spec.attention) != ("bidirectional", 0):
            raise InputError("punctuation_lm reads cleared texts in both directions; set attention to bidirectional.")
        if all(strip_punctuation(text) == text for text in self.train_texts):
            raise InputError("No punctuation and no capital occurs in these texts, so there is nothing to learn.")
        self._prepared: _Prepared | None = None

    def loss(self, context: TokenContext) -> Loss:
        """The mean over all generated tokens."""
        check_prefix_lm_attention(context.backbone.model)
        prepared = self._prepare(context)
        restorer, examples = prepared.restorer, prepared.train
        usable = next((example for example in examples if example), None)
        if usable is None:
            raise InputError(f"{_NONE_FITS} Give shorter sentences, or raise read.max_length.")

        def loss(rows: Rows) -> Tensor:
            return restorer.mean_loss([example for row in rows if (example := examples[row])] or [usable])

        return loss

    def dev_metric(self, context: TokenContext) -> Callable[[], float]:
        """Minus the loss on held-out texts."""
        prepared = self._prepare(context)
        examples = list(filter(None, prepared.dev))
        if not examples:
            raise InputError(f"Of the held-out texts: {_NONE_FITS} Give more of them.")
        return lambda: -float(prepared.restorer.mean_loss(examples))

    def report(self, context: TokenContext) -> dict[str, Any]:
        """Precision, recall and F1 of held-out texts generated greedily."""
        prepared = self._prepare(context)
        usable = [(text, example) for text, example in zip(self.dev_texts, prepared.dev, strict=True) if example]
        usable = usable[:_MAX_GENERATED]
        generated = prepared.restorer.generate([example for _, example in usable])
        restored = self._restoration_score(context, [text for text, _ in usable[: len(generated)]], generated)
        sizes = {
            "texts": len(generated),
            "problems": restored.problems,
            "texts of another length": restored.mismatched,
            "texts too long": [*prepared.train, *prepared.dev].count(None),
        }
        return {"restoration": restored.rates() | sizes}

    def _restoration_score(
        self, context: TokenContext, texts: Sequence[str], generated: Sequence[list[int]]
    ) -> RestorationScore:
        decode = context.backbone.tokenizer.decode
        decoded = [decode(ids, skip_special_tokens=True) for ids in generated]
        words = [
            aligned_words(text) if strip_punctuation(text) else [] for text in decoded
        ]  # it may be nothing but punctuation
        return score_restoration(
            [strip_punctuation(text).split() for text in texts], words, [aligned_words(text) for text in texts]
        )

    def _prepare(self, context: TokenContext) -> _Prepared:
        if self._prepared is None or self._prepared.context is not context:
            restorer = TextRestorer(context)
            examples = (restorer.examples(texts) for texts in (self.train_texts, self.dev_texts))
            self._prepared = _Prepared(context, restorer, *examples)
        return self._prepared


@dataclass(frozen=True)
class _Prepared:
    """What is computed once per context, since a trained copy of the model has its own LM head."""

    context: TokenContext
    restorer: TextRestorer
    train: list[RestorationExample | None]
    """None for a text that does not fit."""
    dev: list[RestorationExample | None]


@dataclass(frozen=True)
class RestorationExample:
    """A cleared text, and the tokens to generate behind it."""

    source: list[int]
    """Ends with the separator."""
    target: list[int]
    """Ends with the separator."""

    @property
    def prompt(self) -> Prompt:
        """Source and target without the last token, from which nothing is predicted."""
        ids = [*self.source, *self.target[:-1]]
        return Prompt(ids, 0, len(ids))


class TextRestorer:
    """Computes the loss of examples, and generates their targets greedily."""

    def __init__(self, context: TokenContext) -> None:
        self.context, self.states, self.head = context, TokenStates(context), LMHead(context.backbone)
        backbone = context.backbone
        eos = backbone.tokenizer.eos_token_id
        self.separator = backbone.empty_text_token_id if eos is None else int(eos)
        self.encode = backbone.tokenizer.backend_tokenizer.encode

    def examples(self, texts: Sequence[str]) -> list[RestorationExample | None]:
        """Examples of texts; None for a text that would be truncated: it could not be restored."""
        return [self._example(text) for text in texts]

    def _example(self, text: str) -> RestorationExample | None:
        backbone = self.context.backbone
        prompt = self.context.prompts_of([strip_punctuation(text)])[0]
        source = [*prompt.ids, self.separator]
        tokens = check_token_ids(self.encode(text, add_special_tokens=False).ids, backbone.vocabulary_size)
        target = [token for token in tokens if token != self.separator]
        limit, bos = backbone.context_length, backbone.missing_bos_token_id
        truncated = len(self.encode(strip_punctuation(text)).ids) + (bos is not None) > len(prompt.ids)
        too_long = limit is not None and len(source) + len(target) > limit
        return None if truncated or too_long else RestorationExample(source, [*target, self.separator])

    def mean_loss(self, examples: Sequence[RestorationExample]) -> Tensor:
        """Mean cross-entropy of a target token."""
        costs = [len(example.prompt.ids) for example in examples]
        total = sum_over_texts(self.context, costs, lambda chunk: self._loss_sum([examples[index] for index in chunk]))
        return total / sum(len(example.target) for example in examples)

    def _loss_sum(self, examples: Sequence[RestorationExample]) -> Tensor:
        states = self._states_before_targets(examples)
        targets = torch.tensor([token for example in examples for token in example.target], device=states.device)
        return self.head.cross_entropy(states, targets)

    def _states_before_targets(self, examples: Sequence[RestorationExample]) -> Tensor:
        """[tokens, width] states before each target token, of all examples in a row."""
        source_lengths = torch.tensor([len(example.source) for example in examples])
        with prefix_lm_attention(self.context.backbone.blocks, source_lengths):
            states = self.states([example.prompt for example in examples])
        return torch.cat(
            [
                row[len(example.source) - 1 :][: len(example.target)]
                for row, example in zip(states, examples, strict=True)
            ]
        )

    def generate(self, examples: Sequence[RestorationExample]) -> list[list[int]]:
        """Greedy generations of the examples, or of the first ones where that takes too long."""
        generated: list[list[int]] = []
        budget = _MAX_TOKENS_READ
        while budget > 0 and len(generated) < len(examples):
            batch = examples[len(generated) :][:_GENERATE_TOGETHER]
            drafts = [Draft(example, self._max_tokens(example)) for example in batch]
            budget -= self._decode(drafts)
            generated += [draft.verified_tokens(self.separator) for draft in drafts]
        return generated

    def _decode(self, drafts: Sequence[Draft]) -> int:
        """Speculative greedy decoding with the true text as first draft; returns the number of tokens read.

        One pass verifies the draft up to the first token that the model would not generate; there the draft is
        corrected and verified again. The result does not depend on the draft.
        """
        encoder, tokens_read = self.context.batch_encoder, 0
        while unfinished := [draft for draft in drafts if not draft.is_finished(self.separator)]:
            lengths = [len(draft.example.prompt.ids) for draft in unfinished]
            tokens_read += sum(lengths)
            for chunk in plan_batches(lengths, encoder.budget, encoder.overhead):
                batch = [unfinished[index] for index in chunk]
                states = self._states_before_targets([draft.example for draft in batch])
                predicted = self.head.predict(states).tolist()
                for draft in batch:
                    length = len(draft.example.target)
                    draft.verify(predicted[:length], self._is_punctuation, self.separator)
                    predicted = predicted[length:]
        return tokens_read

    def _max_tokens(self, example: RestorationExample) -> int:
        limit = self.context.backbone.context_length
        max_tokens = len(example.target) + _EXTRA_TOKENS
        return max_tokens if limit is None else min(max_tokens, limit - len(example.source))

    def _is_punctuation(self, token: int) -> bool:
        return not strip_punctuation(self.context.backbone.tokenizer.decode([token]))


class Draft:
    """Verified tokens of a generation, and a guess at the rest."""

    def __init__(self, example: RestorationExample, max_tokens: int) -> None:
        self.example, self.max_tokens, self.n_verified = example, max_tokens, 0

    def is_finished(self, separator: int) -> bool:
        """Whether the separator or the last allowed token is verified."""
        if self.n_verified == 0:
            return False
        return self.example.target[self.n_verified - 1] == separator or self.n_verified >= self.max_tokens

    def verified_tokens(self, separator: int) -> list[int]:
        """All verified tokens but the separator."""
        return [token for token in self.example.target[: self.n_verified] if token != separator]

    def verify(self, predicted: Sequence[int], is_punctuation: Callable[[int], bool], separator: int) -> None:
        """Accept the model's predictions up to the first that differs, and realign the rest of the draft.

        Verified tokens stay, so each pass adds at least one token, however values are rounded.
        """
        draft = self.example.target
        position = next(
            (index for index in range(self.n_verified, len(draft)) if predicted[index] != draft[index]), len(draft) - 1
        )
        token, rest = predicted[position], draft[position + 1 :]
        if token != draft[position]:
            if rest and rest[0] == token:  # the model skips a token of the draft
                rest = rest[1:]
            elif is_punctuation(token) and not is_punctuation(draft[position]):  # it inserts one
                rest = draft[position:]
        self.n_verified = position + 1
        target = [*draft[:position], token, *(rest or [separator])][: self.max_tokens]
        self.example = RestorationExample(self.example.source, target)
