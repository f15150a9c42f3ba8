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
from numpy.typing import NDArray
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
    chunks: PooledChunks | None = None
    """What is pooled instead of the spans, where prompts have several chunks each."""

    @property
    def width(self) -> int:
        """Positions in a row, padding included."""
        return int((self.ids if self.embeds is None else self.embeds).shape[1])

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on another device."""
        ids, mask, start, end = (
            move_to_device(tensor, device) for tensor in (self.ids, self.mask, self.start, self.end)
        )
        packing = self.packing.to(device) if self.packing else None
        chunks = self.chunks.to(device) if self.chunks else None
        return replace(self, ids=ids, mask=mask, start=start, end=end, packing=packing, chunks=chunks)


@dataclass(frozen=True)
class PooledChunks:
    """The tokens of all chunks of a batch, one chunk after the other."""

    rows: Tensor
    """[token] row of the batch that the token is in."""
    positions: Tensor
    """[token] position in the row."""
    boundaries: Tensor
    """[chunks + 1] positions between chunks among the tokens."""

    def to(self, device: torch.device) -> PooledChunks:
        """The same chunks on another device."""
        rows, positions, boundaries = (
            move_to_device(tensor, device) for tensor in (self.rows, self.positions, self.boundaries)
        )
        return PooledChunks(rows, positions, boundaries)

    def shifted(self, shift: Tensor) -> PooledChunks:
        """Return the chunks after as many tokens as `shift` [batch] says were put in front of each row's text."""
        return replace(self, positions=self.positions + shift[self.rows])


@dataclass(frozen=True)
class Packing:
    """Where the prompts of a packed row are."""

    boundaries: Tensor
    """[prompts + 1] int32 positions between prompts, from 0 to the length of the row."""
    positions: Tensor
    """[1, token] position of each token in its prompt."""
    max_length: int
    """Tokens of the longest prompt."""
    groups: PromptGroups | None = None
    """Short prompts in groups, which attend faster than each for itself."""

    @classmethod
    def of(cls, lengths: Sequence[int] | NDArray[np.integer[Any]]) -> Packing:
        """Prompts of these lengths, one after the other."""
        counts = np.asarray(lengths, np.int64)
        ends = np.cumsum(counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        boundaries = np.concatenate([[0], ends]).astype(np.int32)
        groups = PromptGroups.of(counts) if counts.mean() <= _SHORT and counts.max() <= _GROUP else None
        return cls(torch.from_numpy(boundaries), torch.from_numpy(positions)[None], int(counts.max()), groups)

    def to(self, device: torch.device) -> Packing:
        """The same packing on another device."""
        boundaries, positions = move_to_device(self.boundaries, device), move_to_device(self.positions, device)
        groups = self.groups.to(device) if self.groups else None
        return replace(self, boundaries=boundaries, positions=positions, groups=groups)


_GROUP = 128
"""Tokens that an attention kernel computes together, at most."""
_SHORT = 40
"""Mean number of tokens up to which prompts are grouped; longer ones fill enough of a kernel's tokens by themselves."""


@dataclass(frozen=True)
class PromptGroups:
    """Neighbouring prompts of a packed row, as many to a group as fit into `_GROUP` tokens."""

    prompts: Tensor
    """[group, `_GROUP`] index of the prompt whose token is at this position; -1: none."""
    positions: Tensor
    """[token] position of each token among those of all groups."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> PromptGroups:
        """Group prompts of these lengths, none of which is longer than a group."""
        ends = np.cumsum(lengths)
        shifts: list[int] = []
        sizes: list[int] = []
        first = 0
        while first < len(lengths):
            begin = int(ends[first] - lengths[first])
            after = int(np.searchsorted(ends, begin + _GROUP, "right"))
            shifts.append(_GROUP * len(shifts) - begin)
            sizes.append(int(ends[after - 1]) - begin)
            first = after
        positions = np.arange(ends[-1]) + np.repeat(shifts, sizes)
        # torch compiles a size of 1 apart from all others, so a single group gets an empty one beside it
        prompts = np.full(_GROUP * max(2, len(shifts)), -1)
        prompts[positions] = np.repeat(np.arange(len(lengths)), lengths)
        return cls(torch.from_numpy(prompts.reshape(-1, _GROUP)), torch.from_numpy(positions))

    def to(self, device: torch.device) -> PromptGroups:
        """The same groups on another device."""
        return PromptGroups(move_to_device(self.prompts, device), move_to_device(self.positions, device))


@dataclass(frozen=True)
class PastKeyValues:
    """Keys and values of every layer for tokens that precede a batch."""

    cache: Any
    """A read-only cache of transformers (see `kv_cache.read_only_cache`)."""
    mask: Tensor
    """[batch, past token], 0 for padding."""
    positions: Tensor
    """[batch, token] position ids of the tokens of the batch."""


def move_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. A GPU copies it while it computes, for which the memory must be pinned."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Adapter(nn.Module, ABC):
    """What changes the states of a frozen model, mostly trained parameters; attach it with `Backbone.with_adapter`."""

    kind: ClassVar[str]
    packs: ClassVar[bool] = False
    """Whether the adapter works on packed batches as well."""
    hooks_blocks: ClassVar[bool] = False
    """Whether it adds hooks to modules inside blocks, which compiled blocks do not call."""
    changes_weights_only: ClassVar[bool] = False
    """Whether all batches are computed alike within one `enabled`, and `adapt` returns the batch itself."""

    @property
    def continues(self) -> bool:
        """Whether tokens that follow cached keys and values are computed right without the tokens before them."""
        return self.packs

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch that the model reads instead of `batch`."""
        return batch

    def enabled(self, batch: TokenBatch | None = None) -> AbstractContextManager[Any]:
        """Context in which the model computes with the adapter, for adapters that change weights or layers.

        Args:
            batch: The batch that `adapt` returned, if one is about to be computed.
        """
        return nullcontext()

    def recomputing(self) -> AbstractContextManager[Any]:
        """Context in which blocks of the current pass can be computed again after it, with the same result."""
        return nullcontext()

    @property
    def extra_tokens(self) -> int:
        """Positions of the model's context that the adapter uses."""
        return 0

    @property
    def pools_text(self) -> bool:
        """Whether tokens of the text are pooled, so that a part of a text has a vector of its own."""
        return True

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """JSON values that are needed, besides the parameters, to rebuild the adapter."""

    def digest(self) -> str:
        """Hash of the settings and of all parameters with their names."""
        sha256 = hashlib.sha256(repr(sorted(self.settings().items())).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha256.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return sha256.hexdigest()[:16]
