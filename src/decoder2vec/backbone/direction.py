"""Causal or bidirectional attention, switched by config and then proved.

Flags of this kind have been ignored without a word in many releases of many libraries, so nothing here is
believed until a later token has been seen to move an earlier one (or, for causal attention, not to).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.layers import text_config
from decoder2vec.errors import UnsupportedError, unknown_name

ATTENTIONS = ("causal", "bidirectional")

_REASONS = {
    "gpt_neo": "its causal mask is a buffer inside every attention layer",
    "mamba": "a state-space model reads from left to right only",
    "mamba2": "a state-space model reads from left to right only",
    "falcon_mamba": "a state-space model reads from left to right only",
}


def configured_attention(model: nn.Module) -> str:
    """The direction a model's own config asks for: causal unless it says otherwise."""
    return "bidirectional" if getattr(model.config, "is_causal", True) is False else "causal"


def set_attention(model: nn.Module, attention: str) -> None:
    """Switch the model's direction and prove that it took; a family that cannot is refused with the reason."""
    if attention not in ATTENTIONS:
        raise unknown_name("attention", attention, ATTENTIONS)
    before = getattr(model.config, "is_causal", None)
    config: Any = model.config
    text_config(config).is_causal = config.is_causal = attention == "causal"
    proved = False
    try:
        proved = is_bidirectional(model) == (attention == "bidirectional")
    finally:
        if not proved:
            text_config(config).is_causal = config.is_causal = True if before is None else before
    if proved:
        return
    family = text_config(config).model_type
    reason = _REASONS.get(family, "changing a later token does not move an earlier one although the flag is set")
    raise UnsupportedError(f"{family} cannot be read with {attention} attention: {reason}.")


def is_bidirectional(model: nn.Module) -> bool:
    """Does a later token move an earlier one? Asked with and without padding, which take different mask paths."""
    answers = {_moves_earlier(model, padded) for padded in (False, True)}
    if len(answers) > 1:
        raise UnsupportedError(
            "This model attends in one direction when a batch is padded and in another when it is not; "
            "try attn_implementation='eager'."
        )
    return answers.pop()


def _moves_earlier(model: nn.Module, padded: bool) -> bool:
    """Change token 2 and look at token 1: neighbours, so that no attention window is too small for the probe."""
    device = next(model.parameters()).device
    size = text_config(model.config).vocab_size
    ids = torch.arange(7, 11, device=device).remainder(size).repeat(1 + padded, 1)
    changed = ids.clone()
    changed[:, 2] = (ids[:, 2] + size // 2) % size
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 3] = 0
    moved = (_states(model, ids, mask) - _states(model, changed, mask)).abs()[:, 1].max()
    return bool(moved > 1e-6)


@torch.inference_mode()
def _states(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    output: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    return output.float()
