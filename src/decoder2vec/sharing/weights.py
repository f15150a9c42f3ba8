"""The model of an encoder as a model of its own: cut to the layer that is read, with LoRA merged into the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.layers import find_blocks, find_final_norm, keep_first
from decoder2vec.encoder import Encoder
from decoder2vec.sharing.plain import refusal


@torch.no_grad()
def model_to_save(encoder: Encoder) -> Any:
    """A copy on the CPU whose output is what the encoder pools; the encoder itself stays as it is."""
    backbone, reading = encoder.backbone, encoder.spec.readings[0]
    model = copy.deepcopy(backbone.model).cpu()
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_by_path().items():
            model.get_submodule(path).weight.copy_(weight)  # type: ignore[operator]
    if reading.layer < backbone.n_layers:
        keep_first(model, reading.layer)
    if not reading.normed:
        _spare_the_norm(find_final_norm(find_blocks(model)[0]), encoder)
    return model


def _spare_the_norm(norm: nn.Module, encoder: Encoder) -> None:
    """See to it that the final norm, which was not read but always runs, does no harm; else refuse.

    A norm that only rescales leaves the direction of a token's state as it is, and that is all there is to a vector of
    one token and length 1.
    """
    if isinstance(norm, nn.Identity):
        return
    one_token = encoder.spec.readings[0].pooling in ("lasttoken", "cls")
    direction_only = one_token and encoder.spec.normalize and encoder.head is None
    if not (direction_only and _made_to_rescale(norm, encoder.backbone.dim)):
        raise refusal(
            "it reads a layer before the model's final norm, which always runs there; make the encoder with normed=True"
        )


def _made_to_rescale(norm: nn.Module, dim: int) -> bool:
    """Give an RMS norm equal weights; False if it still does more than rescale, as a LayerNorm does."""
    if [name for name, _ in norm.named_parameters()] != ["weight"]:
        return False
    states = torch.randn(8, dim, generator=torch.Generator().manual_seed(0)) + 1
    for weight in (1.0, 0.0):  # some families add 1 to what is stored
        norm.weight.fill_(weight)  # type: ignore[operator]
        if cosine_similarity(norm(states), states).min() > 1 - 1e-6:
            return True
    return False
