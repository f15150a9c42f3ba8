"""What a model that is adapted shall be good at, and what it learns that from."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import PAIR_LOSSES

STYLES = ("mask", "bert")
FILLS = ("none", "random")
FROM_TEXTS = ("simcse", "mntp", "punctuation", "punctuation_lm")
"""Objectives that need nothing but plain texts."""


@dataclass(frozen=True)
class Masking:
    """Which tokens are hidden, and behind what."""

    rate: float = 0.2
    """The share of the tokens that is chosen; of concepts, the largest share."""
    style: str = "mask"
    """mask: all that are chosen are hidden; bert: eight in ten, another token for one, the last stays as it is."""
    fill: str = "none"
    """Where concepts are masked (`concepts` of the data) and are too few: none leaves it at that, random fills up."""
    token: str = ""
    """What stands for a hidden token; by default the tokenizer's own mask token, or an underscore."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"The share of masked tokens lies between 0 and 1, not at {self.rate:g}.")
        for what, name, known in (("style of masking", self.style, STYLES), ("fill", self.fill, FILLS)):
            if name not in known:
                raise unknown_name(what, name, known)


@dataclass(frozen=True)
class Objective:
    """What makes vectors good."""

    name: str = "info_nce"
    """info_nce (what belongs together, against the rest of the batch); on scored pairs cosent, angle or cosine_mse; on
    plain texts simcse (a text read twice, against the rest of the batch), mntp (telling hidden tokens), punctuation
    (telling marks and capitals that were taken away) or punctuation_lm (writing the text with them)."""
    temperature: float = 0.05
    symmetric: bool = False
    """Also let each positive find its anchor."""
    dims: tuple[int, ...] = ()
    """Matryoshka: the first so many dimensions must be good vectors too."""
    dropout: float = 0.3
    """simcse: the share of attention weights that is dropped."""
    masking: Masking = field(default_factory=Masking)
    """mntp: which tokens are hidden."""

    def __post_init__(self) -> None:
        known = ("info_nce", *PAIR_LOSSES, *FROM_TEXTS)
        if self.name not in known:
            raise unknown_name("objective", self.name, known)
        if self.temperature <= 0:
            raise InputError("temperature must be above 0.")
        if not 0 < self.dropout < 1:
            raise InputError(f"The share of dropped attention weights lies between 0 and 1, not at {self.dropout:g}.")
