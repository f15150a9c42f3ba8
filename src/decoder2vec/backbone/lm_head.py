"""From states to words: the language-model head of a backbone, as its own family computes it.

The one place where logits are made. Only the states that are asked for go through it: with a vocabulary of fifty
thousand words the logits of a whole batch would take more room than the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.errors import BackboneError

_AT_ONCE = 4096
"""So many states go through the head at a time: logits of a hundred thousand words take as much as a small model."""


class LMHead:
    """[state, width] states of the top layer, after the final norm, to [state, word] logits.

    Families scale, bias or cap their logits; their stock class does it, on a model that hands the states through. The
    head is frozen; where it is the embeddings it is those of the backbone, and learns if they do.
    """

    def __init__(self, backbone: Backbone) -> None:
        model: Any = _load_language_model(resolve_model_folder(backbone.name), backbone.dtype)
        head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
        self._through = _HandThrough()
        setattr(model, _name_of_body(model), self._through)
        self.model = model.requires_grad_(False).eval().to(backbone.device)
        if head.weight is embeddings.weight:
            head.weight = backbone.model.get_input_embeddings().weight  # type: ignore[operator]

    def __call__(self, states: Tensor) -> Tensor:
        """Logits of the states that are given, and of no others."""
        self._through.states = states[None]
        try:
            ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        finally:
            self._through.states = None
        return logits[0]

    def cross_entropy(self, states: Tensor, truth: Tensor) -> Tensor:
        """The sum over [state] true words; what many states need for gradients is computed again, some at a time."""
        parts = list(zip(torch.split(states, _AT_ONCE), torch.split(truth, _AT_ONCE), strict=True))
        if len(parts) == 1:
            return self._sum(*parts[0])
        return torch.stack([checkpoint(self._sum, *part, use_reentrant=False) for part in parts]).sum()

    def _sum(self, states: Tensor, truth: Tensor) -> Tensor:
        return functional.cross_entropy(self(states).float(), truth, reduction="sum")

    def predict(self, states: Tensor) -> Tensor:
        """[state] numbers of words."""
        return torch.cat([self(part).argmax(dim=1) for part in torch.split(states, _AT_ONCE)])


def _load_language_model(folder: Path, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]  # what follows lists every family there is
        raise BackboneError(f"transformers knows no language-model head for {folder}: {why}") from error
    if report["missing_keys"]:
        raise BackboneError(f"{folder} has no language-model head, so no word can be predicted.")
    return model  # type: ignore[no-any-return]


def _name_of_body(model: nn.Module) -> str:
    """Under which name a language model keeps all that stands below its head; not always the one it declares."""
    blocks = find_blocks(model)[1]
    return next(name for name, part in model.named_children() if any(module is blocks for module in part.modules()))


class _HandThrough(nn.Module):
    """Stands where the model was and returns what it is told to."""

    states: Tensor | None = None

    @property
    def decoder(self) -> _HandThrough:
        """Some families ask a part of the model."""
        return self

    def forward(self, *_: Any, **__: Any) -> _OnlyStates:
        return _OnlyStates(self.states)


class _OnlyStates:
    """What a model returns, by name or by number; all that a family asks for besides the states is None."""

    def __init__(self, states: Tensor | None) -> None:
        self.last_hidden_state = states

    def __getitem__(self, number: int) -> Tensor | None:
        return (self.last_hidden_state,)[number]

    def __getattr__(self, _: str) -> None:
        return None
