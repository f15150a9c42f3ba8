"""Key-value prefix: trained keys and values in front of the text in every attention layer (SPT v2, after P-tuning v2).

The tokens of the text keep the positions that they have without the prefix.
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
from decoder2vec.errors import EncoderError

_SAMPLE_TEXT = "A text of some words."
"""Its keys and values set the mean and the standard deviation of a random prefix."""


class KeyValuePrefix(Adapter):
    """Trained keys and values.

    Args:
        layers: For each layer [key or value, head, token, width]; layers may differ in heads and widths.

    """

    kind: ClassVar[str] = "kv_prefix"

    def __init__(self, layers: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(layer.detach().float().clone()) for layer in layers])

    @classmethod
    @torch.no_grad()
    def initialise(cls, backbone: Backbone, tokens: int, text: str = "", depth: int | None = None) -> KeyValuePrefix:
        """A new prefix to train.

        Args:
            backbone: The model that it is for.
            tokens: Number of tokens of the prefix.
            text: Start from its keys and values, repeated as often as needed; without a text, start from noise with the
                mean and the standard deviation of keys and values that each layer computes.
            depth: Number of layers that get a prefix, if the model is not run above them; by default all.

        """
        backbone.check_token_count("A prefix", tokens)
        ids = backbone.token_ids(text or _SAMPLE_TEXT)
        key_values = compute_key_values(backbone, depth, input_ids=torch.tensor([ids], device=backbone.device))
        layers = [torch.cat([keys, values]).float() for keys, values in key_values]
        if text:
            return cls([layer[:, :, torch.arange(tokens) % len(ids)] for layer in layers])
        return cls([_noise_like(layer, tokens) for layer in layers])

    @classmethod
    @torch.no_grad()
    def from_tensors(cls, layers: Sequence[Tensor], backbone: Backbone) -> KeyValuePrefix:
        """A prefix of saved keys and values; raises EncoderError if their shapes do not fit the model."""
        one_token = torch.tensor([[backbone.pad_token_id]], device=backbone.device)
        expected = compute_key_values(backbone, min(len(layers), backbone.n_layers), input_ids=one_token)
        lengths = {(layer.shape[2] if layer.ndim == 4 else 0) for layer in layers}
        for layer, (keys, _) in zip(layers, expected, strict=True):
            if len(lengths) > 1 or [*layer.shape[:2], *layer.shape[3:]] != [2, keys.shape[1], keys.shape[3]]:
                raise EncoderError(f"a layer of the prefix is {list(layer.shape)}, which does not fit the model.")
        return cls(layers)

    @property
    def extra_tokens(self) -> int:
        """Its length: the prefix has no positions, but some families have masks of a fixed size."""
        return int(self.layers[0].shape[2])

    def settings(self) -> dict[str, Any]:
        """Empty: the parameters are all that is needed."""
        return {}

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch preceded by the prefix."""
        rows, width = batch.mask.shape
        dtype = next(model.parameters()).dtype
        layers = [layer.to(dtype)[:, None].expand(-1, rows, -1, -1, -1) for layer in self.layers]
        positions = torch.arange(width, device=batch.mask.device).expand(rows, -1)
        if batch.padding == "left":
            positions = (batch.mask.cumsum(1) - 1).clamp(min=0)
        mask = batch.mask.new_ones(rows, self.layers[0].shape[2])
        cache = read_only_cache([(layer[0], layer[1]) for layer in layers])
        return replace(batch, past=PastKeyValues(cache, mask, positions))


def _noise_like(layer: Tensor, tokens: int) -> Tensor:
    """Noise with the mean and the standard deviation of the layer's keys and values over tokens."""
    mean, deviation = layer.mean(dim=2, keepdim=True), layer.std(dim=2, keepdim=True)
    noise = torch.randn(*layer.shape[:2], tokens, layer.shape[3]).to(layer.device)
    return mean + deviation * noise
