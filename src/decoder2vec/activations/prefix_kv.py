"""Keys and values of frozen texts: what a soft prompt behind a text needs to know of it, computed once.

Under causal attention the states of a text do not depend on what follows. So the keys and values that its tokens leave
in every layer can be kept on disk, and training a prompt behind it runs the prompt's own tokens only. Where they would
take too much room they are computed anew each time, without gradients.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import PastKeyValues
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values, read_only_cache
from decoder2vec.backbone.machine import batch_overhead, token_budget
from decoder2vec.config import fingerprint
from decoder2vec.storage import atomic_file, prefix_kv_root
from decoder2vec.text.batches import collate, plan
from decoder2vec.text.tokens import Prompt

log = logging.getLogger(__name__)

DEFAULT_CAP = 10 << 30
"""Bytes of keys and values that are kept on disk at most."""

Memory = Callable[[Sequence[int]], "Remembered"]
"""Numbers of texts to what the layers hold of them."""


@dataclass(frozen=True)
class Remembered:
    """Keys and values of some texts, padded on the left, so that what follows stands right behind each."""

    layers: list[LayerKeyValues]
    lengths: Tensor
    """[text] tokens of each."""

    def before(self, tokens: int) -> PastKeyValues:
        """As the past of so many tokens that follow."""
        width = self.layers[0][0].shape[2]
        device = self.lengths.device
        mask = torch.arange(width, device=device) >= width - self.lengths[:, None]
        positions = self.lengths[:, None] + torch.arange(tokens, device=device)
        return PastKeyValues(read_only_cache(self.layers), mask.long(), positions)


def prefix_memory(backbone: Backbone, prompts: Sequence[Prompt], depth: int, cap: int = DEFAULT_CAP) -> Memory:
    """Keys and values of the first `depth` layers: kept on disk if they take at most `cap` bytes, else made anew."""
    bare = backbone.with_adapter(None)
    shapes = _shapes(bare, depth)
    size = sum(len(prompt.ids) for prompt in prompts) * sum(map(_size, shapes)) * bare.dtype.itemsize
    if size > cap:
        log.info("Keys and values would take %.1f GB, over %.1f: they are computed anew.", size / 1e9, cap / 1e9)
        return _Computed(bare, prompts, depth)
    try:
        return _Kept(bare, prompts, shapes)
    except OSError as error:
        log.warning("Keys and values cannot be kept on disk (%s): they are computed anew.", error)
        return _Computed(bare, prompts, depth)


class _Computed:
    """Reads the texts anew each time, without gradients."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Prompt], depth: int) -> None:
        self.backbone, self.prompts, self.depth = backbone, prompts, depth

    @torch.no_grad()
    def __call__(self, rows: Sequence[int]) -> Remembered:
        batch = collate([self.prompts[row] for row in rows], self.backbone.pad_token_id).to(self.backbone.device)
        found = compute_key_values(self.backbone, self.depth, input_ids=batch.ids)
        lengths = batch.mask.sum(dim=1)
        place = torch.arange(batch.width, device=lengths.device) - (batch.width - lengths[:, None])
        if (lengths == batch.width).all():
            return Remembered(found, lengths)
        place = place.clamp(min=0)[:, None, :, None]

        def shifted(states: Tensor) -> Tensor:
            return states.gather(2, place.expand(-1, states.shape[1], -1, states.shape[3]))

        return Remembered([(shifted(keys), shifted(values)) for keys, values in found], lengths)


class _Kept:
    """Reads the texts once into a file, [token, everything a token leaves in all layers]."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Prompt], shapes: list[torch.Size]) -> None:
        self.backbone, self.shapes = backbone, shapes
        self.lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        self.ends = self.lengths.cumsum(0)
        self.width = sum(map(_size, shapes))
        identity = [backbone.effective_fingerprint, backbone.attention, str(backbone.dtype), len(shapes)]
        key = fingerprint(*identity, [prompt.ids for prompt in prompts])
        file = prefix_kv_root() / f"{key}.bin"
        size = int(self.ends[-1]) * self.width * backbone.dtype.itemsize
        if not file.is_file() or file.stat().st_size != size:  # one that was cut short would be read as zeros
            _check_room(file.parent, size)
            with atomic_file(file) as temporary:
                self._fill(self._open(temporary), prompts)
        self.states = self._open(file)

    def _open(self, file: Path) -> Tensor:
        count = int(self.ends[-1])
        flat = torch.from_file(str(file), shared=True, size=count * self.width, dtype=self.backbone.dtype)
        return flat.view(count, self.width)

    @torch.no_grad()
    def _fill(self, states: Tensor, prompts: Sequence[Prompt]) -> None:
        device = self.backbone.device
        budget = token_budget(device, self.backbone.dim)
        for rows in plan(self.lengths.tolist(), budget, batch_overhead(device, self.backbone.dim)):
            batch = collate([prompts[row] for row in rows], self.backbone.pad_token_id).to(device)
            found = compute_key_values(self.backbone, len(self.shapes), input_ids=batch.ids)
            parts = [torch.stack(pair, dim=2).permute(0, 3, 2, 1, 4).flatten(2) for pair in found]
            together = torch.cat(parts, dim=2).cpu()
            for row, text in zip(rows, together, strict=True):
                end, length = int(self.ends[row]), int(self.lengths[row])
                states[end - length : end] = text[:length]

    def __call__(self, rows: Sequence[int]) -> Remembered:
        lengths, ends = self.lengths[rows], self.ends[rows]
        width = int(lengths.max())
        places = ends[:, None] - torch.arange(width, 0, -1)
        places = torch.maximum(places, (ends - lengths)[:, None])
        device = self.backbone.device
        found = self.states[places.flatten()].view(len(places), width, self.width).to(device)
        layers, begin = [], 0
        for shape in self.shapes:
            heads, _, wide = shape
            part = found[:, :, begin : begin + _size(shape)].view(len(places), width, 2, heads, wide)
            keys, values = part.permute(2, 0, 3, 1, 4)
            layers.append((keys, values))
            begin += _size(shape)
        return Remembered(layers, lengths.to(device))


def _check_room(folder: Path, size: int) -> None:
    """A full disk is an error now; later, while a mapped file is filled, it would end the process without a word."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@torch.no_grad()
def _shapes(backbone: Backbone, depth: int) -> list[torch.Size]:
    """[head, 1, width] of the keys of each layer."""
    ids = torch.tensor([[backbone.pad_token_id]], device=backbone.device)
    return [keys.shape[1:] for keys, _ in compute_key_values(backbone, depth, input_ids=ids)]


def _size(shape: torch.Size) -> int:
    """Numbers that one token leaves in a layer: a key and a value for each head."""
    return 2 * shape.numel()
