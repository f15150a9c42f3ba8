"""Prompts to padded batches: sorted by length, cut by a token budget, order restored by whoever keeps `rows`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoder2vec.text.tokens import Prompt

_PADDING = 0.03
"""Share of padding at which a batch is closed, once it holds enough tokens to keep the machine busy."""


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded token ids of some prompts, and the span of each that is pooled."""

    ids: Tensor
    """[batch, token]"""
    mask: Tensor
    """[batch, token], 1 for real tokens. Made from lengths, never from ids: padding may be any token."""
    start: Tensor
    end: Tensor
    """[batch] pooled span [start, end)."""
    padding: str = ""
    """Which side is padded: "right", "left", or "" where all prompts are equally long."""

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on a device."""
        ids, mask, start, end = (part.to(device) for part in (self.ids, self.mask, self.start, self.end))
        return TokenBatch(ids, mask, start, end, self.padding)


def collate(prompts: Sequence[Prompt], pad_id: int, *, side: str = "right") -> TokenBatch:
    """Pad prompts to one width. Everything here pads on the right; the left exists to be checked against."""
    width = max(len(prompt.ids) for prompt in prompts)
    ids = np.full((len(prompts), width), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    spans = np.zeros((2, len(prompts)), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        shift = width - len(prompt.ids) if side == "left" else 0
        ids[row, shift : shift + len(prompt.ids)] = prompt.ids
        mask[row, shift : shift + len(prompt.ids)] = 1
        spans[:, row] = prompt.start + shift, prompt.end + shift
    start, end = torch.from_numpy(spans)
    return TokenBatch(torch.from_numpy(ids), torch.from_numpy(mask), start, end, "" if mask.all() else side)


def plan(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Rows of each batch, longest texts first so that a batch too large for memory shows itself at once."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    enough = budget // 8
    batch: list[int] = []
    real = 0
    for row in order:
        if batch:
            width = lengths[batch[0]]
            area = width * (len(batch) + 1)
            wasteful = area - real - lengths[row] > _PADDING * area and real >= enough
            if area > budget or wasteful:
                yield batch
                batch, real = [], 0
        batch.append(row)
        real += lengths[row]
    if batch:
        yield batch
