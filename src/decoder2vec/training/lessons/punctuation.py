"""Punctuation and capitals are taken away, and the model shall say of every word what was done to it.

Min, Lee, Lee and Lee, punctuation restoration. Words, not tokens, have labels: without capitals a word is cut into
other tokens. What is told of a word is told from its first token and its last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.errors import InputError
from decoder2vec.recipes.adapting import Adapting
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
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.corpus import FEWEST, CorpusLesson, check_reads_tokens
from decoder2vec.training.lessons.lesson import Classroom, Loss
from decoder2vec.training.lessons.parts import TokenStates, sum_over
from decoder2vec.training.loop import Rows

_WORDS = 150
"""Sentences are read in excerpts of so many words at most."""
_LEAST = 5
"""An edit seen less often in the corpus has no label."""


class ClearedLesson(CorpusLesson):
    """Plain texts with their marks and capitals, which are read without."""

    stage = "cleared texts"

    def __init__(self, recipe: Adapting, data: TrainingData, *, copies: int = 1) -> None:
        """A text is read in so many copies at once."""
        check_reads_tokens(recipe)
        if recipe.read.template != "plain":
            raise InputError("Punctuation is taken away from plain texts; leave the template at plain.")
        words = max(1, min(_WORDS, recipe.read.max_length // (2 * copies)))  # so that hardly any excerpt is cut
        packed = tuple(pack_sentences((text for text in data.texts if strip_punctuation(text)), words))
        if len(packed) < FEWEST:
            raise InputError(
                f"{recipe.objective.name} learns from {FEWEST} excerpts or more, of up to {words} words each, and "
                f"these texts make {len(packed)}; give more text, or a lower max_length."
            )
        super().__init__(recipe, replace(data, texts=packed))

    @property
    def texts(self) -> list[str]:
        """All of them, cleared."""
        return [strip_punctuation(text) for text in super().texts]


class PunctuationLesson(ClearedLesson):
    """By the cross-entropy of every word's edit."""

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        self.vocabulary = EditVocabulary.from_texts(self.learned, min_count=_LEAST)
        if len(self.vocabulary) < 2:
            raise InputError(f"No change of a word occurs {_LEAST} times in these texts, so there is nothing to learn.")
        self._tags: nn.Linear | None = None
        self._apart: _Telling | None = None

    def trained_too(self, room: Classroom) -> nn.Module:
        """The layer that tells edits from states."""
        self._tags = nn.Linear(2 * room.backbone.dim, len(self.vocabulary)).to(room.backbone.device)
        return self._tags

    def loss(self, room: Classroom) -> Loss:
        """The mean over all words that have a label."""
        telling = self._telling(room, self.learned)

        def loss(rows: Rows) -> Tensor:
            return telling.mean(rows.tolist())

        return loss

    def own_score(self, room: Classroom) -> Callable[[], float]:
        """How well the edits of texts that were set aside are told."""
        self._apart = telling = self._telling(room, self.apart)
        return lambda: -float(telling.mean(range(len(self.apart))))

    def report(self, room: Classroom) -> dict[str, Any]:
        """Precision, recall and F1 on the texts that were set aside, and what has no label."""
        assert self._apart is not None
        found = self._restored(self._apart)
        sizes = {
            "problems": found.problems,
            "edits": len(self.vocabulary),
            "words without label": self.vocabulary.rare_words,
        }
        return {"restoration": found.rates() | sizes}

    def _telling(self, room: Classroom, texts: Sequence[str]) -> _Telling:
        assert self._tags is not None
        return _Telling(room, self._tags, self.vocabulary, texts)

    def _restored(self, telling: _Telling) -> RestorationScore:
        words = [strip_punctuation(text).split() for text in telling.texts]
        told = telling.told()
        output = [
            [edit.apply(word) for word, edit in zip(own, chosen, strict=True)]
            for own, chosen in zip(words, told, strict=True)
        ]
        return score_restoration(words, output, [aligned_words(text) for text in telling.texts])


class _Telling:
    """States of the words of some texts to their edits."""

    def __init__(self, room: Classroom, tags: nn.Linear, vocabulary: EditVocabulary, texts: Sequence[str]) -> None:
        self.room, self.tags, self.vocabulary, self.texts = room, tags, vocabulary, texts
        cleared = [strip_punctuation(text) for text in texts]
        self.prompts = [room.prompts[room.place[text]] for text in cleared]
        places = token_positions(cleared, self.prompts, room.backbone, _words)
        self.ends = [torch.tensor([_ends(word) for word in own], dtype=torch.long).view(-1, 2) for own in places]
        self.labels = [torch.tensor(self._numbers(text, own)) for text, own in zip(texts, places, strict=True)]
        self.states = TokenStates(room)

    def _numbers(self, text: str, places: Sequence[Sequence[int]]) -> list[int]:
        """Of the edits of those words that fit; a word without tokens has no label."""
        known = zip(places, word_edits(text)[1], strict=False)
        return [self.vocabulary.index(edit) if word else NO_LABEL for word, edit in known]

    def mean(self, numbers: Sequence[int]) -> Tensor:
        """The cross-entropy of a labelled word of some texts, on average."""
        costs = [len(self.prompts[number].ids) for number in numbers]
        count = sum(int((self.labels[number] != NO_LABEL).sum()) for number in numbers)
        total = sum_over(self.room, costs, lambda some: self._loss([numbers[one] for one in some]))
        return total / max(1, count)

    def _loss(self, numbers: Sequence[int]) -> Tensor:
        labels = torch.cat([self.labels[number] for number in numbers]).long()
        logits = self._logits(numbers)
        return functional.cross_entropy(
            logits.float(), labels.to(logits.device), ignore_index=NO_LABEL, reduction="sum"
        )

    def _logits(self, numbers: Sequence[int]) -> Tensor:
        """[word, edit] of all words of some texts."""
        states = self.states([self.prompts[number] for number in numbers])
        ends = [self.ends[number] for number in numbers]
        rows = torch.repeat_interleave(torch.arange(len(ends)), torch.tensor([len(own) for own in ends]))
        first, last = torch.cat(ends).clamp(min=0).to(states.device).unbind(1)
        rows = rows.to(states.device)
        both = torch.cat([states[rows, first], states[rows, last]], dim=1)
        logits: Tensor = self.tags(both.to(self.tags.weight.dtype))
        return logits

    def told(self) -> list[list[Edit]]:
        """What the model says was done to each word; words that did not fit or have no tokens are left alone."""
        labels = [[0] * len(strip_punctuation(text).split()) for text in self.texts]
        path = self.room.path
        for numbers in plan_batches([len(prompt.ids) for prompt in self.prompts], path.fits, path.overhead):
            best = self._logits(numbers).argmax(dim=1).cpu()
            parts = torch.split(best, [len(self.ends[number]) for number in numbers])
            for number, own in zip(numbers, parts, strict=True):
                told = torch.where(self.ends[number][:, 0] >= 0, own, 0)
                labels[number][: len(told)] = told.tolist()
        return [[self.vocabulary.edits[label] for label in own] for own in labels]


def _words(text: str) -> list[tuple[int, int]]:
    """Where the words of a cleared text stand; one space parts them."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def _ends(places: Sequence[int]) -> tuple[int, int]:
    """The first token of a word and its last, or -1 where the tokenizer keeps nothing of it."""
    return (places[0], places[-1]) if places else (-1, -1)
