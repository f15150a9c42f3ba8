"""Hooks that pool each wanted layer where it is computed, and stop the model after the last wanted one.

Only [batch, reading, dim] is ever kept, instead of every layer's every token; the LM head never runs.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.pooling import POOLINGS, Pooler


class _Enough(Exception):
    """Raised by the last hook: nothing above is wanted."""


class Capture:
    """Reads a backbone: token batch in, one float32 vector per reading out, in one pass."""

    def __init__(self, backbone: Backbone, readings: Sequence[Reading]) -> None:
        if not readings:
            raise InputError("Nothing to read: give at least one layer and pooling.")
        self.backbone = backbone
        self.readings = [Reading(backbone.resolve_layer(r.layer), r.pooling, r.normed) for r in readings]
        self._wanted: dict[int, dict[bool, list[str]]] = defaultdict(lambda: defaultdict(list))
        for reading in dict.fromkeys(self.readings):
            if reading.pooling not in POOLINGS:
                raise unknown_name("pooling", reading.pooling, POOLINGS)
            self._wanted[reading.layer][reading.normed].append(reading.pooling)
        self.last_layer = max(self._wanted)

    def __call__(self, batch: TokenBatch) -> Tensor:
        """[batch, reading, dim] on the model's device."""
        batch = self.backbone.adapt(batch)
        pooled: dict[Reading, Tensor] = {}
        poolers: dict[tuple[str, ...], Pooler] = {}

        def read(layer: int, states: Tensor) -> None:
            for normed, poolings in self._wanted.get(layer, {}).items():
                seen = self.backbone.final_norm(states) if normed else states
                names = tuple(poolings)
                if names not in poolers:
                    poolers[names] = Pooler(batch.start, batch.end, batch.width, names)
                vectors = poolers[names](seen)
                for name, vector in zip(poolings, vectors.unbind(1), strict=True):
                    pooled[Reading(layer, name, normed)] = vector
            if layer == self.last_layer:
                raise _Enough

        handles = self._hook(read)
        try:
            with self.backbone.adapter_enabled(), any_shape_attention(self.backbone.device):
                self.backbone.model(**self.model_inputs(batch), use_cache=False)
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([pooled[reading] for reading in self.readings], dim=1)

    def model_inputs(self, batch: TokenBatch) -> dict[str, Any]:
        """What the model's forward is given for a batch.

        Under causal attention a token never sees the padding on its right, so the mask is left out and the
        fastest attention kernel can be taken; the vectors are the same.
        """
        inputs: dict[str, Any] = {"input_ids": batch.ids} if batch.embeds is None else {"inputs_embeds": batch.embeds}
        if batch.past:
            inputs["past_key_values"] = batch.past.cache
            inputs["attention_mask"] = torch.cat([batch.past.mask, batch.mask], dim=1)
            if _takes_positions(self.backbone.model):
                inputs["position_ids"] = batch.past.positions
            return inputs
        if batch.padding == "left" or (batch.padding and self.backbone.attention != "causal"):
            inputs["attention_mask"] = batch.mask
        if batch.padding == "left" and _takes_positions(self.backbone.model):
            inputs["position_ids"] = (batch.mask.cumsum(1) - 1).clamp(min=0)
        return inputs

    def _hook(self, read: Callable[[int, Tensor], None]) -> list[Any]:
        """Layer 0 is what the first block is given; layer i is what block i returns."""
        blocks = self.backbone.blocks

        def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read(0, args[0] if args else kwargs["hidden_states"])

        handles = [blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)] if 0 in self._wanted else []
        for layer in sorted(self._wanted.keys() - {0}):

            def after(_: nn.Module, __: Any, output: Any, layer: int = layer) -> None:
                read(layer, output[0] if isinstance(output, tuple) else output)

            handles.append(blocks[layer - 1].register_forward_hook(after))
        return handles


def _takes_positions(model: nn.Module) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters
