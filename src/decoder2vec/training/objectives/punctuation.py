"""Punctuation restoration: punctuation and capitals are removed, and each word's edit is predicted from its tokens.

Min, Lee, Lee and Lee. Labels belong to words, not tokens: lower-casing changes how a word is tokenised. The edit of a
word is predicted from the states of its first and its last token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.errors import InputError
from decoder2vec.text.batches import plan_batches
from decoder2vec.text.punctuation import (
    NO_LABEL,
    Edit,
    EditVocabulary,
    RestorationScore,
    aligned_words,
    pack_sentences,
    score_restoration,
    strip_punctuation,
    word_edits,
)
from decoder2vec.text.tokens import token_positions
from decoder2vec.training.context import InputSpec, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.corpus import MIN_TEXTS, NEEDS_TOKEN_STATES, CorpusObjective, require_token_states
from decoder2vec.training.objectives.objective import HELD_OUT_LOSS, Config, Loss, Metric, ObjectiveConfig
from decoder2vec.training.objectives.token_states import TokenStates, sum_over_texts

_MAX_WORDS = 150
"""Sentences are packed into excerpts of at most this many words."""
_MIN_EDIT_COUNT = 5
"""Rarer edits have no label."""


class ClearedTextObjective(CorpusObjective[Config]):
    """Plain texts, packed into excerpts that are read without punctuation and capitals."""

    stage = "cleared texts"
    unreadable = NEEDS_TOKEN_STATES

    def __init__(self, config: Config, data: TrainingData, spec: InputSpec, *, copies: int = 1) -> None:
        """Pack the texts into excerpts so short that `copies` of one fit into `max_length` tokens."""
        require_token_states(config.name, spec)
        words = max(1, min(_MAX_WORDS, spec.max_length // (2 * copies)))  # so that hardly any excerpt is truncated
        packed = tuple(pack_sentences((text for text in data.texts if strip_punctuation(text)), words))
        if len(packed) < MIN_TEXTS:
            raise InputError(
                f"{config.name} learns from {MIN_TEXTS} excerpts or more, of up to {words} words each, and "
                f"these texts make {len(packed)}; give more text, or a lower max_length."
            )
        super().__init__(config, replace(data, texts=packed), spec)

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """Unknown: texts are packed into excerpts."""
        return None

    def metric(self, correlation: str) -> Metric:
        """The loss on held-out texts, also where there are dev pairs."""
        return HELD_OUT_LOSS

    @property
    def texts(self) -> list[str]:
        """All excerpts, cleared."""
        return [strip_punctuation(text) for text in super().texts]


@dataclass(frozen=True)
class PunctuationConfig(ObjectiveConfig):
    """Punctuation restoration as word tagging."""

    name: str = "punctuation"


class PunctuationObjective(ClearedTextObjective[PunctuationConfig]):
    """The cross-entropy of every word's edit."""

    names = ("punctuation",)
    config_class = PunctuationConfig
    classifier: nn.Linear
    """From the states of a word to its edit."""

    def __init__(self, config: PunctuationConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        self.vocabulary = EditVocabulary.from_texts(self.train_texts, min_count=_MIN_EDIT_COUNT)
        if len(self.vocabulary) < 2:
            raise InputError(
                f"No change of a word occurs {_MIN_EDIT_COUNT} times in these texts, so there is nothing to learn."
            )

    def extra_modules(self, context: TokenContext) -> nn.Module:
        """A linear layer from states to edits."""
        self.classifier = nn.Linear(2 * context.backbone.dim, len(self.vocabulary)).to(context.device)
        return self.classifier

    def loss(self, context: TokenContext) -> Loss:
        """The mean over all words that have a label."""
        tagger = self._tagger(context, self.train_texts)

        def loss(rows: Rows) -> Tensor:
            return tagger.mean_loss(rows.tolist())

        return loss

    def dev_metric(self, context: TokenContext) -> Callable[[], float]:
        """Minus the loss on held-out texts."""
        tagger = self._tagger(context, self.dev_texts)
        return lambda: -float(tagger.mean_loss(range(len(self.dev_texts))))

    def report(self, context: TokenContext) -> dict[str, Any]:
        """Precision, recall and F1 on held-out texts, and how many words have no label."""
        restored = self._restoration_score(self._tagger(context, self.dev_texts))
        sizes = {
            "problems": restored.problems,
            "edits": len(self.vocabulary),
            "words without label": self.vocabulary.rare_words,
        }
        return {"restoration": restored.rates() | sizes}

    def _tagger(self, context: TokenContext, texts: Sequence[str]) -> EditTagger:
        return EditTagger(context, self.classifier, self.vocabulary, texts)

    def _restoration_score(self, tagger: EditTagger) -> RestorationScore:
        words = [strip_punctuation(text).split() for text in tagger.texts]
        restored = [
            [edit.apply(word) for word, edit in zip(words_of_text, chosen, strict=True)]
            for words_of_text, chosen in zip(words, tagger.predict(), strict=True)
        ]
        return score_restoration(words, restored, [aligned_words(text) for text in tagger.texts])


class EditTagger:
    """Predicts the edit of every word of some texts."""

    def __init__(
        self, context: TokenContext, classifier: nn.Linear, vocabulary: EditVocabulary, texts: Sequence[str]
    ) -> None:
        """Find the tokens and the label of every word.

        Args:
            context: The model that reads the texts.
            classifier: From the states of a word's first and last token to logits of its edit.
            vocabulary: The edits that have a label.
            texts: With punctuation and capitals.

        """
        self.context, self.classifier, self.vocabulary, self.texts = context, classifier, vocabulary, texts
        cleared = [strip_punctuation(text) for text in texts]
        self.prompts = context.prompts_of(cleared)
        words = token_positions(cleared, self.prompts, context.backbone, _word_spans)
        self.ends = [
            torch.tensor([_first_and_last(word) for word in words_of_text], dtype=torch.long).view(-1, 2)
            for words_of_text in words
        ]
        """[words, 2] of each text: position of each word's first and last token."""
        self.labels = [
            torch.tensor(self._labels(text, words_of_text)) for text, words_of_text in zip(texts, words, strict=True)
        ]
        self.states = TokenStates(context)

    def _labels(self, text: str, words: Sequence[Sequence[int]]) -> list[int]:
        """Labels of the words that fit into the prompt; a word without tokens has none."""
        pairs = zip(words, word_edits(text)[1], strict=False)
        return [self.vocabulary.index(edit) if word else NO_LABEL for word, edit in pairs]

    def mean_loss(self, indices: Sequence[int]) -> Tensor:
        """Mean cross-entropy over the labelled words of some texts."""
        costs = [len(self.prompts[index].ids) for index in indices]
        n_labels = sum(int((self.labels[index] != NO_LABEL).sum()) for index in indices)
        total = sum_over_texts(self.context, costs, lambda chunk: self._loss_sum([indices[i] for i in chunk]))
        return total / max(1, n_labels)

    def _loss_sum(self, indices: Sequence[int]) -> Tensor:
        labels = torch.cat([self.labels[index] for index in indices]).long()
        logits = self._logits(indices)
        return functional.cross_entropy(
            logits.float(), labels.to(logits.device), ignore_index=NO_LABEL, reduction="sum"
        )

    def _logits(self, indices: Sequence[int]) -> Tensor:
        """[words, edits] logits of all words of some texts."""
        states = self.states([self.prompts[index] for index in indices])
        ends = [self.ends[index] for index in indices]
        rows = torch.repeat_interleave(torch.arange(len(ends)), torch.tensor([len(words) for words in ends]))
        first, last = torch.cat(ends).clamp(min=0).to(states.device).unbind(1)
        rows = rows.to(states.device)
        features = torch.cat([states[rows, first], states[rows, last]], dim=1)
        logits: Tensor = self.classifier(features.to(self.classifier.weight.dtype))
        return logits

    def predict(self) -> list[list[Edit]]:
        """The most likely edit of each word; words that did not fit or have no tokens are left unchanged."""
        labels = [[0] * len(strip_punctuation(text).split()) for text in self.texts]
        encoder = self.context.batch_encoder
        for indices in plan_batches([len(prompt.ids) for prompt in self.prompts], encoder.budget, encoder.overhead):
            best = self._logits(indices).argmax(dim=1).cpu()
            by_text = torch.split(best, [len(self.ends[index]) for index in indices])
            for index, predicted in zip(indices, by_text, strict=True):
                usable = torch.where(self.ends[index][:, 0] >= 0, predicted, 0)
                labels[index][: len(usable)] = usable.tolist()
        return [[self.vocabulary.edits[label] for label in labels_of_text] for labels_of_text in labels]


def _word_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the words of a cleared text."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def _first_and_last(positions: Sequence[int]) -> tuple[int, int]:
    """First and last token of a word; -1 if the tokenizer gives none."""
    return (positions[0], positions[-1]) if positions else (-1, -1)
