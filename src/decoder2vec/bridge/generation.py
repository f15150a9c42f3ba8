"""Greedy generation from input embeddings: batched, with a cache of what was computed before."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import any_shape_attention

_CACHES = ("past_key_values", "cache_params")
"""What families call the cache: keys and values, or the states of a state-space model."""


@torch.inference_mode()
def generate(backbone: Backbone, head: LMHead, embeds: Tensor, max_tokens: int, stop_id: int) -> list[list[int]]:
    """The most likely next tokens of each row, one by one, up to the stop token, which is not returned.

    Rows have no padding, so they need neither mask nor positions; one that has stopped is computed until all have.

    Args:
        backbone: The model, causal, with its adapter if any.
        head: Its language-model head.
        embeds: [rows, tokens, width] input embeddings.
        max_tokens: Tokens of a row, at most.
        stop_id: The token that ends a row.

    """
    parameters = inspect.signature(backbone.model.forward).parameters
    name = next(name for name in _CACHES if name in parameters)
    inputs: dict[str, Any] = {"inputs_embeds": embeds}
    ids = torch.empty(len(embeds), 0, dtype=torch.long, device=embeds.device)
    stopped = torch.zeros(len(embeds), dtype=torch.bool, device=embeds.device)
    with backbone.lock, backbone.adapter_enabled(), any_shape_attention(backbone.device):
        for _ in range(max_tokens):
            output = backbone.model(**inputs, use_cache=True)
            following = head.predict(output.last_hidden_state[:, -1])
            ids = torch.cat([ids, following[:, None]], dim=1)
            stopped |= following == stop_id
            if stopped.all():
                break
            inputs = {"input_ids": following[:, None], name: getattr(output, name)}
    return [_until(row, stop_id) for row in ids.tolist()]


def _until(ids: list[int], stop_id: int) -> list[int]:
    return ids[: ids.index(stop_id)] if stop_id in ids else ids
