"""Causal or bidirectional attention, switched by config and then proved.

Flags of this kind have been ignored without a word in many releases of many libraries, so nothing here is
believed until a later token has been seen to move an earlier one (or, for causal attention, not to).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from decoder2vec.backbone.layers import find_blocks, text_config
from decoder2vec.backbone.masks import narrow, prefix_attention, the_past
from decoder2vec.errors import InputError, UnsupportedError, unknown_name

ATTENTIONS = ("causal", "bidirectional")
"""Also bidirectional:12, which is causal up to layer 12 and looks both ways above it."""

_REASONS = {
    "gpt_neo": "its causal mask is a buffer inside every attention layer",
    "mamba": "a state-space model reads from left to right only",
    "mamba2": "a state-space model reads from left to right only",
    "falcon_mamba": "a state-space model reads from left to right only",
}


def configured_attention(model: nn.Module) -> str:
    """The direction a model's own config asks for: causal unless it says otherwise."""
    return "bidirectional" if getattr(model.config, "is_causal", True) is False else "causal"


def parse_attention(attention: str) -> tuple[str, int]:
    """The direction, and the layer up to which attention stays causal all the same."""
    kind, colon, layer = attention.partition(":")
    if kind not in ATTENTIONS or (colon and kind == "causal"):
        raise unknown_name("attention", attention, (*ATTENTIONS, "bidirectional:12"))
    if colon and not layer.isdecimal():
        raise InputError(f"In {attention!r} a layer's number should stand behind the colon.")
    return kind, int(layer) if colon else 0


def set_attention(model: nn.Module, attention: str) -> None:
    """Switch the model's direction and prove that it took; a family that cannot is refused with the reason."""
    kind, lower = parse_attention(attention)
    blocks = find_blocks(model)[1]
    if lower >= len(blocks):
        raise InputError(f"{attention!r} leaves nothing to look both ways: the model has {len(blocks)} layers.")
    before = getattr(model.config, "is_causal", None)
    config: Any = model.config
    text_config(config).is_causal = config.is_causal = kind == "causal"
    _keep_causal(model, blocks[:lower])
    proved = False
    try:
        proved = is_bidirectional(model) == (kind == "bidirectional") and not (lower and _looks_ahead(model, lower))
    finally:
        if not proved:
            text_config(config).is_causal = config.is_causal = True if before is None else before
            _keep_causal(model, [])
    if proved:
        return
    family = text_config(config).model_type
    reason = _REASONS.get(family, "changing a later token does not move an earlier one although the flag is set")
    raise UnsupportedError(f"{family} cannot be read with {attention} attention: {reason}.")


_KEPT_CAUSAL: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
"""What undoes it, for each model with blocks that are kept causal under a config that says otherwise."""


def _keep_causal(model: nn.Module, blocks: Any) -> None:
    """Hide what comes later from these blocks, and from no others any more."""
    for handle in _KEPT_CAUSAL.pop(model, []):
        handle.remove()
    if len(blocks):
        _KEPT_CAUSAL[model] = narrow(blocks, the_past)


def is_bidirectional(model: nn.Module) -> bool:
    """Does a later token move an earlier one? Asked with and without padding, which take different mask paths."""
    answers = {_moves_earlier(model, padded) for padded in (False, True)}
    if len(answers) > 1:
        raise UnsupportedError(
            "This model attends in one direction when a batch is padded and in another when it is not; "
            "try attn_implementation='eager'."
        )
    return answers.pop()


def check_prefix_attention(model: nn.Module) -> None:
    """Prove that `prefix_attention` holds: both directions within the prefix, and none ahead behind it."""
    try:
        proved = all(_reads_prefixes(model, padded) for padded in (False, True))
    except RuntimeError as error:  # blocks that are no attention are given a mask of other sizes
        raise _no_prefixes(model) from error
    if not proved:
        raise _no_prefixes(model)


def _reads_prefixes(model: nn.Module, padded: bool) -> bool:
    with prefix_attention(find_blocks(model)[1], torch.tensor([2] * (1 + padded))):
        inside, *ahead = (_moves_earlier(model, padded, changed=place) for place in (1, 2, 3))
    return inside and not any(ahead)


def _no_prefixes(model: nn.Module) -> UnsupportedError:
    family = text_config(model.config).model_type
    return UnsupportedError(f"{family} cannot read a beginning in both directions and go on from left to right.")


def _looks_ahead(model: nn.Module, layer: int) -> bool:
    """Does a later token move an earlier one up to that layer?"""
    return any(_moves_earlier(model, padded, layer) for padded in (False, True))


def _moves_earlier(model: nn.Module, padded: bool, layer: int | None = None, changed: int = 2) -> bool:
    """Change a token and look at the one before: neighbours, so that no attention window is too small for the probe."""
    device = next(model.parameters()).device
    size = text_config(model.config).vocab_size
    ids = torch.arange(7, 11, device=device).remainder(size).repeat(1 + padded, 1)
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + size // 2) % size
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 3] = 0
    moved = (_states(model, ids, mask, layer) - _states(model, other, mask, layer)).abs()[:, changed - 1].max()
    return bool(moved > 1e-6)


@torch.inference_mode()
def _states(model: nn.Module, ids: Tensor, mask: Tensor, layer: int | None) -> Tensor:
    """[text, token, width] of a layer, or of the top."""
    found: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handle = find_blocks(model)[1][layer - 1].register_forward_hook(keep) if layer else None
    try:
        top: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    finally:
        if handle:
            handle.remove()
    return (found[0] if layer else top).float()
