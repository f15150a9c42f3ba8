"""MNTP: tokens are hidden, and the state before each shall tell which it was.

BehnamGhader et al., "LLM2Vec", 2024. The shift by one keeps what a decoder knows: it has always told the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.errors import InputError
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.training.concept_masking import ConceptMasking
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.corpus import CorpusLesson, check_reads_tokens
from decoder2vec.training.lessons.lesson import Classroom, Loss
from decoder2vec.training.lessons.parts import TokenStates, sum_over
from decoder2vec.training.loop import Rows
from decoder2vec.training.masking import Hidden, RandomMasking


class MaskedLesson(CorpusLesson):
    """Plain texts, by the cross-entropy of their hidden tokens."""

    stage = "masked texts"

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        check_reads_tokens(recipe)
        if recipe.read.template != "plain":  # a template's own words are not worth learning, and echo gives all away
            raise InputError("Tokens are hidden in plain texts; leave the template at plain.")
        self._ready: tuple[Classroom, RandomMasking, _Telling] | None = None

    def loss(self, room: Classroom) -> Loss:
        """Tokens are chosen anew in every epoch."""
        masking, tell = self._held_in(room)
        numbers = [room.place[text] for text in self.learned]
        usable = np.array([bool(masking.can_hide(room.prompts[number].ids)) for number in numbers])
        if not usable.any():
            raise InputError(f"{self._nothing()} Give other texts.")

        def loss(rows: Rows) -> Tensor:
            chosen = [numbers[row] for row in rows if usable[row]] or [numbers[int(usable.argmax())]]
            return tell(masking([room.prompts[number].ids for number in chosen]), chosen)

        return loss

    def own_score(self, room: Classroom) -> Callable[[], float]:
        """How well hidden tokens of the texts that were set aside are told, the same tokens each time."""
        masking, tell = self._held_in(room)
        numbers = [room.place[text] for text in self.apart]
        numbers = [number for number in numbers if masking.can_hide(room.prompts[number].ids)]
        if not numbers:
            raise InputError(f"Of the texts that were set aside: {self._nothing()} Give more of them.")
        hidden = masking([room.prompts[number].ids for number in numbers], torch.Generator().manual_seed(0))
        return lambda: -float(tell(hidden, numbers))

    def identity(self) -> list[Any]:
        """The texts, and what is hidden of them."""
        return [*super().identity(), sorted(self.data.concepts.concepts) if self.data.concepts else []]

    def _masking(self, room: Classroom) -> RandomMasking:
        settings, concepts = self.objective.masking, self.data.concepts
        if concepts is None:
            return RandomMasking(settings, room.backbone)
        prompts = [room.prompts[room.place[text]] for text in self.texts]
        masking = ConceptMasking(settings, room.backbone, concepts, self.texts, prompts)
        if not any(masking.found.values()):  # where chance fills up, it would do so everywhere
            raise InputError(f"{self._nothing()} Give other texts.")
        return masking

    def _nothing(self) -> str:
        if self.data.concepts:
            return "No text has one of the concepts behind its first token: other concepts may fit these texts."
        return "No text has two tokens, so there is none to be told from another."

    def _held_in(self, room: Classroom) -> tuple[RandomMasking, _Telling]:
        """What hides tokens and what tells them: made once for a room, since a trained copy has a head of its own."""
        if self._ready is None or self._ready[0] is not room:
            self._ready = room, self._masking(room), _Telling(room)
        return self._ready[1:]


class _Telling:
    """Hidden tokens to the mean cross-entropy of telling them; only the states before them go through the head."""

    def __init__(self, room: Classroom) -> None:
        self.room, self.states, self.head = room, TokenStates(room), LMHead(room.backbone)

    def __call__(self, hidden: Sequence[Hidden], numbers: Sequence[int]) -> Tensor:
        """A text of which nothing is hidden is not read, unless there is no other."""
        count = max(1, sum(len(one.places) for one in hidden))
        rows = [row for row, one in enumerate(hidden) if one.places] or [0]

        def part(some: list[int]) -> Tensor:
            return self._sum([hidden[rows[one]] for one in some], [numbers[rows[one]] for one in some])

        return sum_over(self.room, [len(hidden[row].ids) for row in rows], part) / count

    def _sum(self, hidden: Sequence[Hidden], numbers: Sequence[int]) -> Tensor:
        """Over all hidden tokens of some texts."""
        texts = [self.room.prompts[number] for number in numbers]
        states = self.states([replace(text, ids=one.ids) for text, one in zip(texts, hidden, strict=True)])
        told = [(row, place, texts[row].ids[place]) for row, one in enumerate(hidden) for place in one.places]
        rows, places, truth = torch.tensor(told, dtype=torch.long, device=states.device).view(-1, 3).unbind(1)
        return self.head.cross_entropy(states[rows, places - 1], truth)
