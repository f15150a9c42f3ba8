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

_ROUNDING = 1e-5
"""A token that moves by less than this part of what the changed one does has been rounded otherwise."""

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
    depth = len(find_blocks(model)[1])
    if lower >= depth:
        raise InputError(f"{attention!r} leaves nothing to look both ways: the model has {depth} layers.")
    before = getattr(model.config, "is_causal", None)
    config: Any = model.config
    text_config(config).is_causal = config.is_causal = kind == "causal"
    kept = _keep_causal(model, 0)
    fault = "unproved"
    try:
        fault = _fault(model, kind) or (_fault_above(model, lower) if lower else "")
    finally:
        if fault:
            text_config(config).is_causal = config.is_causal = True if before is None else before
            _keep_causal(model, kept)
    if fault:
        family = text_config(config).model_type
        raise UnsupportedError(f"{family} cannot be read with {attention} attention: {_REASONS.get(family, fault)}.")


def _fault(model: nn.Module, kind: str) -> str:
    """What speaks against it that the model reads that way; nothing if it is proved to."""
    if is_bidirectional(model) == (kind == "bidirectional"):
        return ""
    moves = "moves" if kind == "causal" else "does not move"
    return f"changing a later token {moves} an earlier one although the flag is set"


def _fault_above(model: nn.Module, lower: int) -> str:
    """Keep the first so many layers of a bidirectional model causal; the same question, asked of both parts."""
    _keep_causal(model, lower)
    try:
        if not is_bidirectional(model):
            return f"changing a later token does not move an earlier one if only layers above {lower} may see it"
        if _looks_ahead(model, lower):
            return f"changing a later token moves an earlier one in layer {lower} all the same"
    except RuntimeError:  # a block that was taken for attention multiplies by its mask, or the like
        return "its blocks take no mask over pairs of tokens"
    return ""


_KEPT_CAUSAL: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()
"""How many blocks are kept causal under a config that says otherwise, for each such model, and what undoes it."""


def _keep_causal(model: nn.Module, depth: int) -> int:
    """Hide what comes later from the first so many blocks, and from no others any more; returns how many they were."""
    before, handles = _KEPT_CAUSAL.pop(model, (0, []))
    for handle in handles:
        handle.remove()
    if depth:
        _KEPT_CAUSAL[model] = depth, narrow(find_blocks(model)[1], the_past, depth)
    return before


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
    """Change a token and look at the one before: neighbours, so that no attention window is too small for the probe.

    A recurrence may round a token's state otherwise when a later token changes; that is no sight of it.
    """
    device = next(model.parameters()).device
    size = text_config(model.config).vocab_size
    ids = torch.arange(7, 11, device=device).remainder(size).repeat(1 + padded, 1)
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + size // 2) % size
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 3] = 0
    moved = (_states(model, ids, mask, layer) - _states(model, other, mask, layer)).abs()
    return bool(moved[:, changed - 1].max() > _ROUNDING * moved[:, changed].max())


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
