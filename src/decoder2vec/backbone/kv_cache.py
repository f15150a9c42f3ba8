"""Keys and values of a text: compute them, and put them in front of what a model reads by a read-only cache.

The caches of transformers grow with every pass. A read-only cache returns the same keys and values each time, so that a
block can be computed twice (as gradient checkpointing does), and gradients flow into its keys and values.
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


def compute_key_values(backbone: Backbone, depth: int | None = None, **inputs: Any) -> list[LayerKeyValues]:
    """Run the model and return the keys and values of its first `depth` layers; the pass stops after them.

    Args:
        backbone: The model.
        depth: Number of layers; by default all.
        **inputs: Inputs of the model, such as `input_ids`.

    Raises:
        UnsupportedError: The family has no keys and values, or not in every layer (state-space models, hybrids).

    """
    depth = backbone.n_layers if depth is None else depth
    cache = DynamicCache()
    handle = backbone.blocks[depth - 1].register_forward_hook(_stop)
    try:
        with any_shape_attention(backbone.device):
            backbone.model(**inputs, past_key_values=cache, use_cache=True)
    except _LastLayerReached:
        pass
    except (TypeError, AttributeError, ValueError, IndexError) as error:  # IndexError: a hybrid asks for its state
        raise _no_key_values(backbone) from error
    finally:
        handle.remove()
    layers = [(layer.keys, layer.values) for layer in cache.layers[:depth] if getattr(layer, "keys", None) is not None]
    if len(layers) != depth or any(keys.ndim != 4 for keys, _ in layers):
        raise _no_key_values(backbone)
    return layers


def read_only_cache(layers: Sequence[LayerKeyValues]) -> Cache:
    """A cache that puts these keys and values in front of those that each layer computes, and stores nothing."""
    return Cache(layers=[_ReadOnlyLayer(keys, values) for keys, values in layers])


class _ReadOnlyLayer(DynamicLayer):  # type: ignore[misc]
    """Fixed keys and values of one layer."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> LayerKeyValues:
        """Return the fixed keys and values followed by the new ones; the new ones are not stored."""
        return (
            torch.cat([self.keys.to(key_states.dtype), key_states], dim=-2),
            torch.cat([self.values.to(value_states.dtype), value_states], dim=-2),
        )


class _LastLayerReached(Exception):
    """Ends the forward pass."""


def _stop(*_: Any) -> None:
    raise _LastLayerReached


def _no_key_values(backbone: Backbone) -> UnsupportedError:
    return UnsupportedError(f"{backbone.family} has no keys and values, so none can be put in front of a text.")
