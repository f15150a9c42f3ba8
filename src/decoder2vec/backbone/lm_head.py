"""The language-model head of a backbone: hidden states to logits, as the family's own class computes them.

Only the requested states go through the head: with a vocabulary of fifty thousand tokens the logits of a whole batch
would take more memory than the model.
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

_CHUNK = 4096
"""States that go through the head at a time: logits over a hundred thousand tokens are as large as a small model."""


class LMHead:
    """[state, width] states of the last layer, after the final norm, to [state, vocabulary] logits.

    Families scale, bias or cap their logits; their own class does it, around a stand-in model that returns the given
    states. The head is frozen. If it is tied to the embeddings, it uses the backbone's, and is trained if they are.
    """

    def __init__(self, backbone: Backbone) -> None:
        model: Any = _load_language_model(resolve_model_folder(backbone.name), backbone.dtype)
        head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
        self._head_name = next(name for name, module in model.named_modules() if module is head)
        base_model = _base_model_attribute(model)
        self._base_model = _FixedOutputModel(getattr(model, base_model))
        setattr(model, base_model, self._base_model)
        self.model = model.requires_grad_(False).eval().to(backbone.device)
        self.is_tied = head.weight is embeddings.weight
        if self.is_tied:
            head.weight = backbone.model.get_input_embeddings().weight  # type: ignore[operator]

    @property
    def weight(self) -> Tensor:
        """[vocabulary, width] output embeddings."""
        weight: Tensor = self.model.get_submodule(self._head_name).weight
        return weight

    def add_tokens(self, embeddings: Tensor) -> None:
        """Give new tokens the logits after those of the vocabulary, by [token, width] output embeddings.

        The family's own class scales or caps them as it does the others.
        """
        longer = _LongerHead(self.model.get_submodule(self._head_name), embeddings)
        self.model.set_submodule(self._head_name, longer)

    def __call__(self, states: Tensor) -> Tensor:
        """[state, vocabulary] logits of [state, width] states."""
        self._base_model.states = states[None]
        try:
            ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        finally:
            self._base_model.states = None
        return logits[0]

    def cross_entropy(self, states: Tensor, target_ids: Tensor) -> Tensor:
        """Sum of the cross-entropies of [state] target tokens.

        Several chunks of states are checkpointed: their logits are computed again in the backward pass.
        """
        chunks = list(zip(torch.split(states, _CHUNK), torch.split(target_ids, _CHUNK), strict=True))
        if len(chunks) == 1:
            return self._summed_cross_entropy(*chunks[0])
        losses = [checkpoint(self._summed_cross_entropy, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.stack(losses).sum()

    def _summed_cross_entropy(self, states: Tensor, target_ids: Tensor) -> Tensor:
        return functional.cross_entropy(self(states).float(), target_ids, reduction="sum")

    def log_likelihoods(self, states: Tensor, target_ids: Tensor) -> Tensor:
        """[state] log-probabilities of [state] target tokens."""
        chunks = zip(torch.split(states, _CHUNK), torch.split(target_ids, _CHUNK), strict=True)
        entropies = [functional.cross_entropy(self(chunk).float(), ids, reduction="none") for chunk, ids in chunks]
        return -torch.cat(entropies)

    def predict(self, states: Tensor) -> Tensor:
        """[state] ids of the most likely tokens."""
        return torch.cat([self(chunk).argmax(dim=1) for chunk in torch.split(states, _CHUNK)])


def _load_language_model(folder: Path, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # the other lines list every known family
        raise BackboneError(f"transformers knows no language-model head for {folder}: {reason}") from error
    if report["missing_keys"]:
        raise BackboneError(f"{folder} has no language-model head, so no token can be predicted.")
    return model  # type: ignore[no-any-return]


def _base_model_attribute(model: nn.Module) -> str:
    """The attribute that holds everything below the head; not always the one that the class declares."""
    blocks = find_blocks(model)[1]
    return next(name for name, child in model.named_children() if any(module is blocks for module in child.modules()))


class _LongerHead(nn.Module):
    """A linear layer with more outputs, whose weights belong to another module."""

    embeddings: Tensor

    def __init__(self, head: nn.Module, embeddings: Tensor) -> None:
        super().__init__()
        self.head = head
        self.__dict__["embeddings"] = embeddings  # no parameter of this module

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(states)
        return torch.cat([logits, functional.linear(states, self.embeddings.to(states.dtype))], dim=-1)


class _FixedOutputModel(nn.Module):
    """Replaces the base model and returns the states that were set."""

    states: Tensor | None = None

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        # Falcon-H1 scales its logits by a number of its base model
        vars(self).update({name: value for name, value in vars(replaced).items() if isinstance(value, int | float)})

    @property
    def decoder(self) -> _FixedOutputModel:
        """Some families call `model.decoder`."""
        return self

    def forward(self, *_: Any, **__: Any) -> _FixedOutput:
        return _FixedOutput(self.states)


class _FixedOutput:
    """A model output with hidden states only, by name or index; every other attribute is None."""

    def __init__(self, states: Tensor | None) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor | None:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, _: str) -> None:
        return None
