"""What a model is given to read: padded tokens, the span of each row that is pooled, what an adapter adds to them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


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
    past: PastKeyValues | None = None
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
class PastKeyValues:
    """Keys and values for every layer, as if so many tokens had been read before."""

    cache: Any
    """A transformers cache that hands them out and keeps nothing."""
    mask: Tensor
    """[batch, past token], 0 for padding."""
    positions: Tensor
    """[batch, token] positions of the tokens that are read now."""


class Adapter(nn.Module, ABC):
    """Plugged into a backbone by `Backbone.with_adapter`; its parameters are all that training changes."""

    kind: ClassVar[str]

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """What the model reads instead of the batch."""
        return batch

    def enabled(self) -> AbstractContextManager[Any]:
        """The model's own weights differ while this is open, where an adapter is of that sort."""
        return nullcontext()

    @property
    def extra_tokens(self) -> int:
        """Positions of the model's context that the adapter takes for itself."""
        return 0

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is needed to build the adapter again, apart from its numbers."""

    def digest(self) -> str:
        """Names the adapter by its numbers and settings."""
        found = hashlib.sha256(repr(sorted(self.settings().items())).encode())
        for name, tensor in sorted(self.state_dict().items()):
            found.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]
