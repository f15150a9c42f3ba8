"""Cached keys and values of frozen texts, for training a soft prompt that is appended to them.

Under causal attention the states of a text do not depend on what follows. So the keys and values of its tokens in every
layer can be cached on disk, and training a prompt behind the text only runs the tokens of the prompt. Where the cache
would be too large, they are recomputed each time, without gradients.
"""

from __future__ import annotations

import errno
import hashlib
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
from decoder2vec.config import fingerprint
from decoder2vec.storage import atomic_file, prefix_kv_root
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 10 << 30
"""Maximum size of the cache of keys and values on disk."""

KeysValuesLookup = Callable[[Sequence[int]], "CachedKeysValues"]
"""Returns the keys and values of some texts, given their indices."""


@dataclass(frozen=True)
class CachedKeysValues:
    """Keys and values of some texts, padded on the left, so that new tokens directly follow each text."""

    layers: list[LayerKeyValues]
    lengths: Tensor
    """[text] number of tokens of each text."""

    def as_past(self, n_tokens: int) -> PastKeyValues:
        """Return them as the past of `n_tokens` tokens that follow."""
        width = self.layers[0][0].shape[2]
        device = self.lengths.device
        mask = torch.arange(width, device=device) >= width - self.lengths[:, None]
        positions = self.lengths[:, None] + torch.arange(n_tokens, device=device)
        return PastKeyValues(read_only_cache(self.layers), mask.long(), positions)


def cache_keys_values(
    backbone: Backbone, prompts: Sequence[Prompt], depth: int, max_bytes: int = DEFAULT_MAX_BYTES
) -> KeysValuesLookup:
    """Return a lookup for the keys and values of prompts: from disk, or recomputed where they do not fit there.

    Args:
        backbone: The model; its adapter is not used.
        prompts: The prompts of the texts.
        depth: Number of layers.
        max_bytes: Maximum size on disk.
    """
    bare = backbone.with_adapter(None)
    shapes = _key_shapes(bare, depth)
    size = sum(len(prompt.ids) for prompt in prompts) * sum(map(_values_per_token, shapes)) * bare.dtype.itemsize
    if size > max_bytes:
        log.info("Keys and values would take %.1f GB, over %.1f: recomputing them.", size / 1e9, max_bytes / 1e9)
        return _RecomputedKeysValues(bare, prompts, depth)
    try:
        return _StoredKeysValues(bare, prompts, shapes)
    except OSError as error:
        log.warning("Keys and values cannot be cached on disk (%s): recomputing them.", error)
        return _RecomputedKeysValues(bare, prompts, depth)


class _RecomputedKeysValues:
    """Runs the texts each time, without gradients."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Prompt], depth: int) -> None:
        self.backbone, self.prompts, self.depth = backbone, prompts, depth

    @torch.no_grad()
    def __call__(self, rows: Sequence[int]) -> CachedKeysValues:
        batch = collate([self.prompts[row] for row in rows], self.backbone.pad_token_id).to(self.backbone.device)
        layers = compute_key_values(self.backbone, self.depth, input_ids=batch.ids)
        lengths = batch.mask.sum(dim=1)
        if (lengths == batch.width).all():
            return CachedKeysValues(layers, lengths)
        source = torch.arange(batch.width, device=lengths.device) - (batch.width - lengths[:, None])
        source = source.clamp(min=0)[:, None, :, None]

        def pad_left(states: Tensor) -> Tensor:
            return states.gather(2, source.expand(-1, states.shape[1], -1, states.shape[3]))

        return CachedKeysValues([(pad_left(keys), pad_left(values)) for keys, values in layers], lengths)


class _StoredKeysValues:
    """Runs the texts once and stores [token, keys and values of all layers] in a file."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Prompt], shapes: list[torch.Size]) -> None:
        self.backbone, self.shapes = backbone, shapes
        self.lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        self.ends = self.lengths.cumsum(0)
        self.width = sum(map(_values_per_token, shapes))
        identity = [backbone.effective_fingerprint, backbone.attention, str(backbone.dtype), len(shapes)]
        key = fingerprint(*identity, [prompt.ids for prompt in prompts])
        file = prefix_kv_root() / f"{key}.bin"
        size = int(self.ends[-1]) * self.width * backbone.dtype.itemsize
        if not _is_intact(file, size):
            with atomic_file(file) as temporary:
                _reserve(temporary, size)
                self._fill(self._open(temporary, writable=True), prompts)
                digest = _sha256(temporary, size)
                with temporary.open("ab") as handle:
                    handle.write(digest)
        self.states = self._open(file)

    def _open(self, file: Path, *, writable: bool = False) -> Tensor:
        n_tokens = int(self.ends[-1])
        flat = torch.from_file(str(file), shared=writable, size=n_tokens * self.width, dtype=self.backbone.dtype)
        return flat.view(n_tokens, self.width)

    @torch.no_grad()
    def _fill(self, states: Tensor, prompts: Sequence[Prompt]) -> None:
        device = self.backbone.device
        plan = plan_batches(self.lengths.tolist(), self.backbone.token_budget(), self.backbone.batch_overhead)
        for rows in plan:
            batch = collate([prompts[row] for row in rows], self.backbone.pad_token_id).to(device)
            layers = compute_key_values(self.backbone, len(self.shapes), input_ids=batch.ids)
            by_layer = [torch.stack(layer, dim=2).permute(0, 3, 2, 1, 4).flatten(2) for layer in layers]
            for row, text in zip(rows, torch.cat(by_layer, dim=2).cpu(), strict=True):
                end, length = int(self.ends[row]), int(self.lengths[row])
                states[end - length : end] = text[:length]

    def __call__(self, rows: Sequence[int]) -> CachedKeysValues:
        lengths, ends = self.lengths[rows], self.ends[rows]
        width = int(lengths.max())
        tokens = ends[:, None] - torch.arange(width, 0, -1)
        tokens = torch.maximum(tokens, (ends - lengths)[:, None])
        device = self.backbone.device
        states = self.states[tokens.flatten()].view(len(tokens), width, self.width).to(device)
        layers, begin = [], 0
        for shape in self.shapes:
            heads, _, head_dim = shape
            size = _values_per_token(shape)
            layer = states[:, :, begin : begin + size].view(len(tokens), width, 2, heads, head_dim)
            keys, values = layer.permute(2, 0, 3, 1, 4)
            layers.append((keys, values))
            begin += size
        return CachedKeysValues(layers, lengths.to(device))


def _reserve(file: Path, size: int) -> None:
    """Fail now if the disk is full: later, while a mapped file is filled, it would kill the process with no message."""
    if shutil.disk_usage(file.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    with file.open("r+b") as handle:
        if hasattr(os, "posix_fallocate"):  # other processes cannot take the space any more
            os.posix_fallocate(handle.fileno(), 0, size)


def _is_intact(file: Path, size: int) -> bool:
    """Whether a file has `size` bytes and, at its end, their checksum."""
    if not file.is_file() or file.stat().st_size != size + hashlib.sha256().digest_size:
        return False
    with file.open("rb") as handle:
        handle.seek(size)
        return handle.read() == _sha256(file, size)


def _sha256(file: Path, size: int) -> bytes:
    """SHA-256 of the first `size` bytes of a file."""
    total, left = hashlib.sha256(), size
    with file.open("rb") as handle:
        while left and (block := handle.read(min(left, 1 << 20))):
            total.update(block)
            left -= len(block)
    return total.digest()


@torch.no_grad()
def _key_shapes(backbone: Backbone, depth: int) -> list[torch.Size]:
    """[heads, 1, head dim] of the keys of each layer."""
    ids = torch.tensor([[backbone.pad_token_id]], device=backbone.device)
    return [keys.shape[1:] for keys, _ in compute_key_values(backbone, depth, input_ids=ids)]


def _values_per_token(shape: torch.Size) -> int:
    """Numbers that one token has in a layer: a key and a value for each head."""
    return 2 * shape.numel()
