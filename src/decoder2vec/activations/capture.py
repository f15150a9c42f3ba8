"""Forward hooks that pool each requested layer as it is computed, and stop the model after the last of them.

Only [batch, reading, dim] is kept in memory instead of every token of every layer; the LM head never runs.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.blocks import changes_in_passes
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.backbone.packing import packed_attention, packed_inputs
from decoder2vec.backbone.sharding import is_sharded
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.pooling import POOLINGS, ChunkPooler, PackedPooler, Pooler


class _StopForward(Exception):
    """Raised by the hook of the last requested layer: the layers above need not run."""


class Capture:
    """Runs a backbone on a batch and returns one float32 vector per text and reading, in a single forward pass.

    A batch with chunks gives one per chunk and reading.

    Args:
        backbone: The model.
        readings: Which layers to read, and how to pool each.
    """

    def __init__(self, backbone: Backbone, readings: Sequence[Reading]) -> None:
        if not readings:
            raise InputError("Nothing to read: give at least one layer and pooling.")
        self.backbone = backbone
        self.readings = [Reading(backbone.resolve_layer(r.layer), r.pooling, r.normed) for r in readings]
        self._poolings: dict[int, dict[bool, list[str]]] = defaultdict(lambda: defaultdict(list))
        """Layer -> normed -> names of poolings."""
        for reading in dict.fromkeys(self.readings):
            if reading.pooling not in POOLINGS:
                raise unknown_name("pooling", reading.pooling, POOLINGS)
            self._poolings[reading.layer][reading.normed].append(reading.pooling)
        self.last_layer = max(self._poolings)
        self._is_sharded = is_sharded(backbone.model)
        """Hooks of FSDP must see the end of every pass."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Return [batch, reading, dim] vectors on the model's device; [chunk, reading, dim] of a batch with chunks."""
        batch = self._adapt(batch)
        pooled: dict[Reading, Tensor] = {}
        poolers: dict[tuple[str, ...], Pooler | PackedPooler] = {}
        thread = get_ident()

        def pool(layer: int, states: Tensor) -> None:
            if get_ident() != thread:  # the batch of another thread, which has hooks of its own
                return
            for normed, poolings in self._poolings.get(layer, {}).items():
                hidden_states = self.backbone.final_norm(states) if normed else states
                names = tuple(poolings)
                if names not in poolers:
                    poolers[names] = _pooler(batch, names)
                vectors = poolers[names](hidden_states)
                for name, vector in zip(poolings, vectors.unbind(1), strict=True):
                    pooled[Reading(layer, name, normed)] = vector
            if layer == self.last_layer and not self._is_sharded:
                raise _StopForward

        handles = self._register_hooks(pool)
        try:
            attention = packed_attention(self.backbone.model) if batch.packing else nullcontext()
            with self.backbone.adapter_enabled(batch), any_shape_attention(self.backbone.device), attention:
                self.backbone.model(**self.model_inputs(batch), use_cache=False)
        except _StopForward:
            pass
        finally:
            for handle in handles:
                handle.remove()
        if self._is_sharded and not torch.is_grad_enabled():
            self.backbone.model.reshard()  # type: ignore[operator]  # FSDP waits for a backward pass
        return torch.stack([pooled[reading] for reading in self.readings], dim=1)

    @property
    def runs_in_threads(self) -> bool:
        """Whether several threads can compute a batch each: no pass changes what another one computes with."""
        adapter = self.backbone.adapter
        one_for_all = adapter is None or adapter.changes_weights_only
        return one_for_all and not self._is_sharded and not changes_in_passes(self.backbone.model)

    def _adapt(self, batch: TokenBatch) -> TokenBatch:
        """The batch that the model reads, with chunks where their tokens are in it."""
        adapted = self.backbone.adapt(batch)
        if batch.chunks is None or adapted is batch:
            return adapted
        return replace(adapted, chunks=batch.chunks.shifted(adapted.start - batch.start))

    def model_inputs(self, batch: TokenBatch) -> dict[str, Any]:
        """Return the keyword arguments of the model's forward for a batch.

        Under causal attention a token never sees the padding on its right, so the mask is omitted and the fastest
        attention kernel can be used; the vectors are the same.
        """
        inputs: dict[str, Any] = {"input_ids": batch.ids} if batch.embeds is None else {"inputs_embeds": batch.embeds}
        if batch.packing:
            return inputs | packed_inputs(batch.packing, self.backbone.attention == "causal")
        if batch.past:
            inputs["past_key_values"] = batch.past.cache
            inputs["attention_mask"] = torch.cat([batch.past.mask, batch.mask], dim=1)
            if _accepts_position_ids(self.backbone.model):
                inputs["position_ids"] = batch.past.positions
            return inputs
        if batch.padding == "left" or (batch.padding and self.backbone.attention != "causal"):
            inputs["attention_mask"] = batch.mask
        if batch.padding == "left" and _accepts_position_ids(self.backbone.model):
            inputs["position_ids"] = (batch.mask.cumsum(1) - 1).clamp(min=0)
        return inputs

    def _register_hooks(self, pool: Callable[[int, Tensor], None]) -> list[Any]:
        """Layer 0 is the input of the first block; layer i is the output of block i."""
        blocks = self.backbone.blocks

        # torch calls a hook without kwargs if another thread removes it at that moment; it then has nothing to pool
        def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: Any = None) -> None:
            pool(0, args[0] if args else kwargs and kwargs["hidden_states"])

        handles = [blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)] if 0 in self._poolings else []
        for layer in sorted(self._poolings.keys() - {0}):

            def after(_: nn.Module, __: Any, output: Any, layer: int = layer) -> None:
                pool(layer, output[0] if isinstance(output, tuple) else output)

            handles.append(blocks[layer - 1].register_forward_hook(after))
        return handles


def _pooler(batch: TokenBatch, poolings: Sequence[str]) -> Pooler | PackedPooler:
    if chunks := batch.chunks:
        return ChunkPooler(chunks.rows, chunks.positions, chunks.boundaries, poolings)
    if batch.packing:
        return PackedPooler(batch.start, batch.end, batch.packing.boundaries, batch.width, poolings)
    return Pooler(batch.start, batch.end, batch.width, poolings)


def _accepts_position_ids(model: nn.Module) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters
