"""Objectives that need nothing but plain texts: most texts are trained on, some are held out for the dev metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from decoder2vec.errors import InputError
from decoder2vec.training.context import InputSpec, Reads, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.objectives.objective import Config, Objective

MIN_TEXTS = 4
_HOLD_OUT_EVERY = 20
_MAX_HELD_OUT = 500


class CorpusObjective(Objective[Config, TokenContext]):
    """An objective on plain texts, which runs every token."""

    needs = "corpus"
    reads: ClassVar[tuple[Reads, ...]] = (Reads.TOKENS,)
    needs_dev = False
    train_texts: list[str]
    dev_texts: list[str]
    """Held out."""

    def __init__(self, config: Config, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        self.train_texts, self.dev_texts = hold_out(data.texts, config.name)

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """The number of texts."""
        return len(data.texts)

    @property
    def texts(self) -> list[str]:
        """Training and held-out texts."""
        return [*self.train_texts, *self.dev_texts]

    def __len__(self) -> int:
        return len(self.train_texts)

    def resume_key(self) -> list[Any]:
        """Both parts of the texts."""
        return [self.train_texts, self.dev_texts]


NEEDS_TOKEN_STATES = "predicts from the tokens of a text, not of a prompt; use lora, kv_prefix or full"
"""Why recipes that do not give the states of a text's own tokens cannot learn an objective."""


def require_token_states(name: str, spec: InputSpec) -> None:
    """Raise unless a recipe reads the states of a plain text's own tokens in the top layer.

    Args:
        name: Name of the objective, for the error message.
        spec: How the recipe reads texts.

    """
    if spec.reads is not Reads.TOKENS or not spec.keeps_positions:
        raise InputError(f"{name} {NEEDS_TOKEN_STATES}.")
    if spec.layer != -1:
        raise InputError(f"{name} predicts from the top layer; leave the layer at -1.")
    if spec.template != "plain":  # a template's own words are not worth learning, and echo shows what is masked
        raise InputError(f"{name} learns from plain texts; leave the template at plain.")


def hold_out(texts: Sequence[str], objective: str) -> tuple[list[str], list[str]]:
    """Training texts, and every twentieth text (at most 500) held out; blank texts are dropped."""
    unique = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(unique) < MIN_TEXTS:
        raise InputError(f"{objective} learns from plain texts, {MIN_TEXTS} or more; there are {len(unique)}.")
    step = max(2, min(_HOLD_OUT_EVERY, len(unique) // 2))
    dev = unique[::step][:_MAX_HELD_OUT]
    held_out = set(dev)
    return [text for text in unique if text not in held_out], dev
