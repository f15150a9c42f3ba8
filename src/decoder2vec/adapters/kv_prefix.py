"""Trained keys and values that every layer's attention finds before the text: SPT v2, after p-tuning v2.

The text keeps its own positions, so its tokens are read where they would be without the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, PastKeyValues, TokenBatch
from decoder2vec.backbone.kv_cache import compute_key_values, read_only_cache
from decoder2vec.errors import InputError


class KeyValuePrefix(Adapter):
    """For each layer [key or value, head, token, width]; layers may differ in heads and widths."""

    kind: ClassVar[str] = "kv_prefix"

    def __init__(self, layers: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(layer.detach().float().clone()) for layer in layers])

    @classmethod
    @torch.no_grad()
    def initialise(cls, backbone: Backbone, tokens: int, text: str = "", depth: int | None = None) -> KeyValuePrefix:
        """A prefix to train: what the layers hold after reading a text, repeated as often as needed, or else noise.

        The noise has the spread of the keys and values that each layer really makes. Only the first `depth` layers get
        one, if the model is never read above.
        """
        backbone.check_token_count("A prefix", tokens)
        ids = backbone.tokenizer(text or _ANY_TEXT, add_special_tokens=False)["input_ids"] or [backbone.pad_token_id]
        found = compute_key_values(backbone, depth, input_ids=torch.tensor([ids], device=backbone.device))
        layers = [torch.cat([keys, values]).float() for keys, values in found]
        if text:
            return cls([layer[:, :, torch.arange(tokens) % len(ids)] for layer in layers])
        return cls([_noise_like(layer, tokens) for layer in layers])

    @classmethod
    @torch.no_grad()
    def checked(cls, layers: Sequence[Tensor], backbone: Backbone) -> KeyValuePrefix:
        """A prefix with these numbers, if they are of the sizes that the model's layers take."""
        one = torch.tensor([[backbone.pad_token_id]], device=backbone.device)
        wanted = compute_key_values(backbone, min(len(layers), backbone.n_layers), input_ids=one)
        sizes = {(layer.shape[2] if layer.ndim == 4 else 0) for layer in layers}
        for layer, (keys, _) in zip(layers, wanted, strict=True):
            if len(sizes) > 1 or [*layer.shape[:2], *layer.shape[3:]] != [2, keys.shape[1], keys.shape[3]]:
                raise InputError(f"a layer of the prefix is {list(layer.shape)}, which does not fit the model.")
        return cls(layers)

    @property
    def extra_tokens(self) -> int:
        """It stands at no position, but some families have masks of a fixed size."""
        return int(self.layers[0].shape[2])

    def settings(self) -> dict[str, Any]:
        """Everything is in the numbers."""
        return {}

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """The batch behind the prefix."""
        rows, width = batch.mask.shape
        dtype = next(model.parameters()).dtype
        pairs = [layer.to(dtype)[:, None].expand(-1, rows, -1, -1, -1) for layer in self.layers]
        positions = torch.arange(width, device=batch.mask.device).expand(rows, -1)
        if batch.padding == "left":
            positions = (batch.mask.cumsum(1) - 1).clamp(min=0)
        mask = batch.mask.new_ones(rows, self.layers[0].shape[2])
        return replace(
            batch, past=PastKeyValues(read_only_cache([(pair[0], pair[1]) for pair in pairs]), mask, positions)
        )


_ANY_TEXT = "A text of some words."


def _noise_like(layer: Tensor, tokens: int) -> Tensor:
    """Noise around the mean over tokens, as wide as the tokens spread."""
    mean, spread = layer.mean(dim=2, keepdim=True), layer.std(dim=2, keepdim=True)
    noise = torch.randn(*layer.shape[:2], tokens, layer.shape[3]).to(layer.device)
    return mean + spread * noise
