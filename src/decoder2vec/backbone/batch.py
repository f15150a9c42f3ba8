"""What a model is given to read: padded tokens, the span of each row that is pooled, what an adapter adds to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Padded token ids of some prompts, and the span of each that is pooled."""

    ids: Tensor
    """[batch, token]"""
    mask: Tensor
    """[batch, token], 1 for real tokens. Made from lengths, never from ids: padding may be any token."""
    start: Tensor
    end: Tensor
    """[batch] pooled span [start, end)."""
    padding: str = ""
    """Which side is padded: "right", "left", or "" where all prompts are equally long."""
    embeds: Tensor | None = None
    """[batch, token, width] vectors to read instead of the ids."""
    past: Past | None = None
    """Keys and values that stand before the first token."""

    @property
    def width(self) -> int:
        """Positions in a row, padding included."""
        return int((self.ids if self.embeds is None else self.embeds).shape[1])

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on a device."""
        ids, mask, start, end = (part.to(device) for part in (self.ids, self.mask, self.start, self.end))
        return replace(self, ids=ids, mask=mask, start=start, end=end)


@dataclass(frozen=True)
class Past:
    """Keys and values for every layer, as if so many tokens had been read before."""

    cache: Any
    """A transformers cache that hands them out and keeps nothing."""
    mask: Tensor
    """[batch, past token], 0 for padding."""
    positions: Tensor
    """[batch, token] positions of the tokens that are read now."""
