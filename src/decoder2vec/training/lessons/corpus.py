"""What lessons on plain texts share: most texts are learned from, some are set aside to choose on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from decoder2vec.errors import InputError
from decoder2vec.recipes.adapting import Adapting, Reads
from decoder2vec.recipes.soft_prompt import SoftPromptTuning
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.lesson import Classroom, Lesson

_EVERY = 20
_MOST = 500
FEWEST = 4


class CorpusLesson(Lesson):
    """A lesson that needs nothing but texts."""

    learned: list[str]
    apart: list[str]
    """Those that are set aside."""

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data)
        self.learned, self.apart = set_aside(data.texts, recipe.objective.name)

    @property
    def texts(self) -> list[str]:
        """Those that are learned from, and those that are set aside."""
        return [*self.learned, *self.apart]

    def __len__(self) -> int:
        return len(self.learned)

    def identity(self) -> list[Any]:
        """The texts as they were, in their two parts."""
        return [self.learned, self.apart]

    @abstractmethod
    def own_score(self, room: Classroom) -> Callable[[], float] | None:
        """On the texts that are set aside."""


def check_reads_tokens(recipe: Adapting) -> None:
    """Refuse what is read at other places than the tokens of a text in its top layer."""
    name = recipe.objective.name
    if recipe.reads is not Reads.TOKENS or isinstance(recipe, SoftPromptTuning):
        raise InputError(f"{name} is told from the tokens of a text, not of a prompt; use lora, kv_prefix or full.")
    if recipe.read.layer != -1:
        raise InputError(f"{name} is told from the top layer; leave the layer at -1.")


def set_aside(texts: Sequence[str], objective: str) -> tuple[list[str], list[str]]:
    """Every twentieth text, at most 500, for a score; the others to learn from. White space alone is no text."""
    found = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(found) < FEWEST:
        raise InputError(f"{objective} learns from plain texts, {FEWEST} or more; there are {len(found)}.")
    step = max(2, min(_EVERY, len(found) // 2))
    apart = found[::step][:_MOST]
    chosen = set(apart)
    return [text for text in found if text not in chosen], apart
