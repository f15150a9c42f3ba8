"""Re-routing: early tokens of a causal model see a summary of the whole text, the last token of it. Nothing is trained.

Token prepending: Fu et al., "Token Prepending: A Training-Free Approach for Eliciting Better Sentence Embeddings from
LLMs", 2024 (arXiv 2412.11556). Key-value re-routing: Tang and Yang, "KV-Embedding: Training-free Text Embedding via
Internal KV Re-routing in Decoder-only LLMs", 2026 (arXiv 2601.01046).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from decoder2vec.backbone.attention import forward_parameters, restrict_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, PastKeyValues, TokenBatch
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values
from decoder2vec.config import fingerprint
from decoder2vec.errors import InputError, UnsupportedError, unknown_name


class Rerouting(Adapter):
    """Base class of the re-routing methods: the range of layers, and no parameters.

    Args:
        backbone: The model that it is for.
        first: The first layer that reads the last token's state.
        last: The last layer that does.

    """

    def __init__(self, backbone: Backbone, first: int, last: int) -> None:
        super().__init__()
        _check_range(first, last, backbone.n_layers)
        if backbone.attention != "causal":
            raise UnsupportedError(
                f"Re-routing is for causal attention; with {backbone.attention} attention early tokens see the end."
            )
        self.first, self.last = first, last
        self._blocks = tuple(backbone.blocks)  # a tuple: the model's blocks are no submodules of the adapter

    @property
    def extra_tokens(self) -> int:
        """One position: the placeholder, or the column that the keys take in masks of a fixed size."""
        return 1

    def settings(self) -> dict[str, Any]:
        """The range of layers."""
        return {"first": self.first, "last": self.last}

    def digest(self) -> str:
        """Hash of the kind and the range: there are no parameters that would differ."""
        return fingerprint(self.kind, self.settings())


class TokenPrepending(Rerouting):
    """A placeholder token in front of the text whose input to each layer of the range is the last token's state.

    The placeholder is the token that represents an empty text. It precedes the first pooled token and is not pooled.
    """

    kind: ClassVar[str] = "token_prepending"

    def __init__(self, backbone: Backbone, first: int, last: int) -> None:
        super().__init__(backbone, first, last)
        self._placeholder = backbone.empty_text_token_id

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch with the placeholder inserted in front of each span."""
        columns = torch.arange(batch.width + 1, device=batch.ids.device)
        placeholder = columns == batch.start[:, None]
        source = (columns - (columns > batch.start[:, None]).long()).clamp(max=batch.width - 1)
        ids = batch.ids.gather(1, source).masked_fill(placeholder, self._placeholder)
        mask = batch.mask.gather(1, source).masked_fill(placeholder, 1)
        return replace(batch, ids=ids, mask=mask, start=batch.start + 1, end=batch.end + 1)

    @contextmanager
    def enabled(self, batch: TokenBatch | None = None) -> Iterator[None]:
        """Context in which the layers of the range read the last token's state at the placeholder."""
        if batch is None:
            yield
            return
        rows = torch.arange(len(batch.ids), device=batch.ids.device)
        placeholder, last_token = batch.start - 1, batch.end - 1

        def replace_placeholder(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name = forward_parameters(type(block).forward)[0]
            states: Tensor = args[0] if args else kwargs[name]
            states = states.index_put((rows, placeholder), states[rows, last_token])
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, name: states})

        blocks = self._blocks[self.first - 1 : self.last]
        handles = [block.register_forward_pre_hook(replace_placeholder, with_kwargs=True) for block in blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class KeyValueRerouting(Rerouting):
    """The last token's key and value in front of those of all tokens, in each layer of the range.

    Tokens keep the positions that they have without it, and the key keeps the last token's position. In layers with a
    sliding window only the tokens in the window after the text's beginning see it.
    """

    kind: ClassVar[str] = "kv_rerouting"

    def __init__(self, backbone: Backbone, first: int, last: int) -> None:
        super().__init__(backbone, first, last)
        with torch.no_grad():  # refuse families that have no keys and values
            compute_key_values(backbone, input_ids=torch.tensor([[backbone.pad_token_id]], device=backbone.device))

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch preceded by one key and value per layer, which the layer itself computes."""
        positions = torch.arange(batch.width, device=batch.mask.device).expand(len(batch.mask), -1)
        if batch.padding == "left":
            positions = (batch.mask.cumsum(1) - 1).clamp(min=0)
        cache = Cache(layers=[_LastTokenLayer(batch.end - 1) for _ in self._blocks])
        return replace(batch, past=PastKeyValues(cache, batch.mask.new_ones(len(batch.mask), 1), positions))

    @contextmanager
    def enabled(self, batch: TokenBatch | None = None) -> Iterator[None]:
        """Context in which layers outside the range do not see the key and value."""
        handles = restrict_attention(self._blocks, _without_first, outside=range(self.first - 1, self.last))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _LastTokenLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a cache that holds one token: a copy of the last one that the layer computes."""

    def __init__(self, last_token: Tensor) -> None:
        super().__init__()
        self._last_token = last_token
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """One, before the layer has computed it too."""
        return 1

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> LayerKeyValues:
        """Return the last token's key and value followed by those of all tokens; nothing is stored."""
        rows = torch.arange(len(key_states), device=key_states.device)
        keys, values = (states[rows, :, self._last_token][:, :, None] for states in (key_states, value_states))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


def _without_first(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
    return (torch.arange(all_tokens, device=device) > 0).expand(tokens, -1)


_KINDS: dict[str, type[Rerouting]] = {"prepend": TokenPrepending, "kv": KeyValueRerouting}
"""By the name that a range of layers follows, as in "prepend:2-8"."""


def parse_rerouting(name: str, n_layers: int) -> tuple[str, int, int]:
    """Split "prepend:2-8" into the method, the first and the last layer of a model with `n_layers` layers."""
    kind, _, layers = name.partition(":")
    if kind not in _KINDS:
        raise unknown_name("re-routing method", kind, _KINDS)
    if not (bounds := re.fullmatch(r"(\d+)-(\d+)", layers)):
        raise InputError(f"Re-routing needs a range of layers, such as {kind}:2-8, not {name!r}.")
    first, last = int(bounds[1]), int(bounds[2])
    _check_range(first, last, n_layers)
    return kind, first, last


def _check_range(first: int, last: int, n_layers: int) -> None:
    if not 1 <= first <= last <= n_layers:
        raise InputError(f"The model has layers 1 to {n_layers} to re-route in, not {first}-{last}.")


def create_rerouting(backbone: Backbone, name: str) -> Rerouting:
    """The re-routing of a name such as "prepend:2-8".

    Raises:
        InputError: The name has no range of layers, or one that the model does not have.
        UnknownNameError: There is no such re-routing method.
        UnsupportedError: The model has no keys and values, or its attention is not causal.

    """
    kind, first, last = parse_rerouting(name, backbone.n_layers)
    return _KINDS[kind](backbone, first, last)
