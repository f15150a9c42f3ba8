"""Keys and values put in front of what a model reads, by a cache that never changes.

transformers' own caches grow when they are read. This one hands out the same keys and values each time, so that a block
can be computed twice (gradient checkpointing does), and gradients flow into what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.errors import UnsupportedError

LayerKeyValues = tuple[Tensor, Tensor]
"""[batch, head, token, width] keys and values of one layer."""


class _FixedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values that stand before whatever a layer computes."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> LayerKeyValues:
        """The past and the present together; nothing is kept."""
        return (
            torch.cat([self.keys.to(key_states.dtype), key_states], dim=-2),
            torch.cat([self.values.to(value_states.dtype), value_states], dim=-2),
        )


def read_only_cache(layers: Sequence[LayerKeyValues]) -> Cache:
    """A cache that puts these before what each layer reads."""
    return Cache(layers=[_FixedLayer(keys, values) for keys, values in layers])


def compute_key_values(backbone: Backbone, depth: int | None = None, **inputs: Any) -> list[LayerKeyValues]:
    """What the attention of the first `depth` layers (or of all) holds after reading; the model is stopped there.

    A family without such a memory is refused.
    """
    depth = backbone.n_layers if depth is None else depth
    cache = DynamicCache()
    handle = backbone.blocks[depth - 1].register_forward_hook(_stop)
    try:
        with any_shape_attention(backbone.device):
            backbone.model(**inputs, past_key_values=cache, use_cache=True)
    except _Enough:
        pass
    except (TypeError, AttributeError, ValueError) as error:
        raise _no_memory(backbone) from error
    finally:
        handle.remove()
    found = [(layer.keys, layer.values) for layer in cache.layers[:depth] if getattr(layer, "keys", None) is not None]
    if len(found) != depth or any(keys.ndim != 4 for keys, _ in found):
        raise _no_memory(backbone)
    return found


class _Enough(Exception):
    """Raised when the last wanted layer is done."""


def _stop(*_: Any) -> None:
    raise _Enough


def _no_memory(backbone: Backbone) -> UnsupportedError:
    return UnsupportedError(f"{backbone.family} keeps no keys and values of what it has read, so none can be given.")
