"""Inputs of a forward pass: padded or packed tokens, keys and values before them, and the base class of adapters."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of several prompts, padded or packed into one row, and the span of each that is pooled."""

    ids: Tensor
    """[batch, token]; [1, token] if packed."""
    mask: Tensor
    """[batch, token], 1 for real tokens. Computed from lengths, never from ids: the pad token may be a real token."""
    start: Tensor
    end: Tensor
    """[batch] pooled span [start, end); of packed prompts, in the common row."""
    padding: str = ""
    """Padded side: "right", "left", or "" if all prompts have the same length."""
    embeds: Tensor | None = None
    """[batch, token, width] input embeddings that replace the ids."""
    past: PastKeyValues | None = None
    """Keys and values that precede the first token."""
    packing: Packing | None = None
    """Where the prompts are, if they are packed."""

    @property
    def width(self) -> int:
        """Positions in a row, padding included."""
        return int((self.ids if self.embeds is None else self.embeds).shape[1])

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on another device."""
        ids, mask, start, end = (_move(tensor, device) for tensor in (self.ids, self.mask, self.start, self.end))
        packing = self.packing.to(device) if self.packing else None
        return replace(self, ids=ids, mask=mask, start=start, end=end, packing=packing)


@dataclass(frozen=True)
class Packing:
    """Where the prompts of a packed row are."""

    boundaries: Tensor
    """[prompts + 1] int32 positions between prompts, from 0 to the length of the row."""
    positions: Tensor
    """[1, token] position of each token in its prompt."""
    max_length: int
    """Tokens of the longest prompt."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Packing:
        """Prompts of these lengths, one after the other."""
        counts = np.asarray(lengths, np.int64)
        ends = np.cumsum(counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        boundaries = np.concatenate([[0], ends]).astype(np.int32)
        return cls(torch.from_numpy(boundaries), torch.from_numpy(positions)[None], int(counts.max()))

    def to(self, device: torch.device) -> Packing:
        """The same packing on another device."""
        return replace(self, boundaries=_move(self.boundaries, device), positions=_move(self.positions, device))


@dataclass(frozen=True)
class PastKeyValues:
    """Keys and values of every layer for tokens that precede a batch."""

    cache: Any
    """A read-only cache of transformers (see `kv_cache.read_only_cache`)."""
    mask: Tensor
    """[batch, past token], 0 for padding."""
    positions: Tensor
    """[batch, token] position ids of the tokens of the batch."""


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; a GPU copies it while it computes, for which the memory must be pinned."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Adapter(nn.Module, ABC):
    """What changes the states of a frozen model, mostly trained parameters; attach it with `Backbone.with_adapter`."""

    kind: ClassVar[str]
    packs: ClassVar[bool] = False
    """Whether the adapter works on packed batches as well."""

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch that the model reads instead of `batch`."""
        return batch

    def enabled(self, batch: TokenBatch | None = None) -> AbstractContextManager[Any]:
        """Context in which the model computes with the adapter, for adapters that change weights or layers.

        Args:
            batch: The batch that `adapt` returned, if one is about to be computed.
        """
        return nullcontext()

    @property
    def extra_tokens(self) -> int:
        """Positions of the model's context that the adapter uses."""
        return 0

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """JSON values that are needed, besides the parameters, to rebuild the adapter."""

    def digest(self) -> str:
        """Hash of the settings and of all parameters with their names."""
        sha256 = hashlib.sha256(repr(sorted(self.settings().items())).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha256.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return sha256.hexdigest()[:16]
