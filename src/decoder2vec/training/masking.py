"""Which tokens of a text are hidden, and behind what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError
from decoder2vec.recipes.objective import Masking

_STAND_IN = "_"
"""Decoders have no mask token; an underscore does as well as any."""
_AS_BERT = (0.8, 0.1)
"""Shares of the chosen tokens that are hidden, and that another token is put in place of; the rest stays."""


@dataclass(frozen=True)
class Hidden:
    """A text with some of its tokens hidden."""

    ids: list[int]
    places: list[int]
    """Which tokens are to be told."""


class RandomMasking:
    """Every token is chosen with the same chance; a text of which none was chosen gives one."""

    def __init__(self, settings: Masking, backbone: Backbone) -> None:
        self.settings = settings
        self.mask_id = mask_token(settings.token, backbone.tokenizer)
        known = backbone.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self.words = min(len(backbone.tokenizer), known)  # some tokenizers have tokens that their model does not
        if self.mask_id >= known:
            token = backbone.tokenizer.convert_ids_to_tokens(self.mask_id)
            raise InputError(f"The model does not know the mask token {token!r} of its tokenizer; name another one.")
        self.special = frozenset(backbone.tokenizer.all_special_ids)

    def can_hide(self, ids: Sequence[int]) -> list[int]:
        """Places of tokens that have one before them to be told from, and are part of the text."""
        return [place for place, token in enumerate(ids) if place and token not in self.special]

    def __call__(self, texts: Sequence[Sequence[int]], generator: torch.Generator | None = None) -> list[Hidden]:
        """Choose and hide, by torch's random numbers or those of a generator."""
        return [self._hide(ids, generator) for ids in texts]

    def _hide(self, ids: Sequence[int], generator: torch.Generator | None) -> Hidden:
        possible = self.can_hide(ids)
        drawn = torch.rand(len(possible), generator=generator)
        places = [place for place, chance in zip(possible, drawn.tolist(), strict=True) if chance < self.settings.rate]
        if not places and possible:
            places = [possible[int(drawn.argmin())]]
        changed = list(ids)
        kinds, others = self._fates(len(places), generator)
        for place, kind, other in zip(places, kinds.tolist(), others.tolist(), strict=True):
            changed[place] = self.instead(kind, changed[place], other)
        return Hidden(changed, places)

    def instead(self, fate: float, token: int, other: int) -> int:
        """What stands in the place of a chosen token, by a number between 0 and 1."""
        if fate < _AS_BERT[0] or self.settings.style == "mask":
            return self.mask_id
        return other if fate < sum(_AS_BERT) else token

    def _fates(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """For each chosen token a number that decides how it is hidden, and another token."""
        kinds = torch.rand(count, generator=generator)
        return kinds, torch.randint(self.words, (count,), generator=generator)


def mask_token(asked: str, tokenizer: Any) -> int:
    """The token that stands for a hidden one: the one asked for, the tokenizer's own, or an underscore."""
    if not asked and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    ids = tokenizer(asked or _STAND_IN, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(f"{asked or _STAND_IN!r} is {len(ids)} tokens here; name a mask token that is a single one.")
    return int(ids[0])
