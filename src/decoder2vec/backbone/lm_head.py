"""From states to words: the language-model head of a backbone, as its own family computes it.

The one place where logits are made. Only the states that are asked for go through it: with a vocabulary of fifty
thousand words the logits of a whole batch would take more room than the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from decoder2vec.backbone.load import Backbone
from decoder2vec.backbone.quiet import quiet_transformers
from decoder2vec.backbone.source import resolve
from decoder2vec.errors import BackboneError


class LanguageHead:
    """[state, width] states of the top layer, after the final norm, to [state, word] logits.

    Families scale, bias or cap their logits; their stock class does it, on a model that hands the states through.
    """

    def __init__(self, backbone: Backbone) -> None:
        from transformers import AutoModelForCausalLM

        folder = resolve(backbone.name)
        with quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=backbone.dtype, use_safetensors=True, output_loading_info=True
            )
        if report["missing_keys"]:
            raise BackboneError(f"{folder} has no language-model head, so no word can be predicted.")
        self._through = _HandThrough()
        setattr(model, model.base_model_prefix, self._through)
        self.model = model.requires_grad_(False).eval().to(backbone.device)

    def __call__(self, states: Tensor) -> Tensor:
        """Logits of the states that are given, and of no others."""
        self._through.states = states[None]
        try:
            ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        finally:
            self._through.states = None
        return logits[0]


class _HandThrough(nn.Module):
    """Stands where the model was and returns what it is told to."""

    states: Tensor | None = None

    @property
    def decoder(self) -> _HandThrough:
        """Some families ask a part of the model."""
        return self

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.states)
