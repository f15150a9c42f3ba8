"""Causal or bidirectional attention, switched by config and then proved.

Flags of this kind have been ignored without a word in many releases of many libraries, so nothing here is
believed until a later token has been seen to move an earlier one (or, for causal attention, not to).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from decoder2vec.backbone.layers import find_blocks, text_config
from decoder2vec.backbone.masks import narrow, prefix_attention, the_past, with_attention
from decoder2vec.backbone.sight import looks_ahead
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
    depth = len(find_blocks(model)[1])
    if lower >= depth:
        raise InputError(f"{attention!r} leaves nothing to look both ways: the model has {depth} layers.")
    before = getattr(model.config, "is_causal", None)
    config: Any = model.config
    text_config(config).is_causal = config.is_causal = kind == "causal"
    kept = _keep_causal(model, 0)
    fault = "unproved"
    try:
        fault = fault_of(model, kind)
        if lower and not fault:
            _keep_causal(model, lower)
            fault = fault_of(model, attention)
    finally:
        if fault:
            text_config(config).is_causal = config.is_causal = True if before is None else before
            _keep_causal(model, kept)
    if fault:
        family = text_config(config).model_type
        raise UnsupportedError(f"{family} cannot be read with {attention} attention: {_REASONS.get(family, fault)}.")


def fault_of(model: nn.Module, attention: str) -> str:
    """What speaks against it that the model reads that way; nothing if every block is proved to.

    Asked with and without padding, which take different mask paths. Blocks without attention read from left to right,
    whatever attention does.
    """
    kind, lower = parse_attention(attention)
    blocks = list(find_blocks(model)[1])
    both = [number for number, _ in with_attention(blocks) if kind == "bidirectional" and number >= lower]
    if kind == "bidirectional" and not both:
        return f"no layer above {lower} has attention"
    try:
        seen = [looks_ahead(model, padded) for padded in (False, True)]
    except RuntimeError:
        if not lower:
            raise
        # a block that was taken for attention multiplies by its mask, or the like
        return "its blocks take no mask over pairs of tokens"
    if bool(seen[0][both].all()) != bool(seen[1][both].all()):
        return "it attends in one direction when a batch is padded and in another when it is not"
    blind = [number for number in both if not all(some[number].all() for some in seen)]
    if blind:
        where = "" if blind == both else f" in {_layers(blind)}"
        return f"changing a later token does not move an earlier one{where} although the flag is set"
    one_way = range(len(blocks) if kind == "causal" else lower)
    if ahead := [number for number in one_way if any(some[number].any() for some in seen)]:
        return f"changing a later token moves an earlier one in {_layers(ahead)} all the same"
    return ""


def _layers(numbers: list[int]) -> str:
    """Blocks, by the number of the layer behind them."""
    return ("layer " if len(numbers) == 1 else "layers ") + ", ".join(str(number + 1) for number in numbers)


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


def check_prefix_attention(model: nn.Module) -> None:
    """Prove that `prefix_attention` holds: both directions within the prefix, and none ahead behind it."""
    try:
        proved = all(_reads_prefixes(model, padded) for padded in (False, True))
    except RuntimeError:  # blocks that are no attention are given a mask of other sizes
        proved = False
    if not proved:
        family = text_config(model.config).model_type
        raise UnsupportedError(f"{family} cannot read a beginning in both directions and go on from left to right.")


def _reads_prefixes(model: nn.Module, padded: bool) -> bool:
    blocks = find_blocks(model)[1]
    with prefix_attention(blocks, torch.tensor([2] * (1 + padded))):
        inside, *ahead = (looks_ahead(model, padded, changed=place) for place in (1, 2, 3))
    attention = [number for number, _ in with_attention(list(blocks))]
    return bool(inside[attention].all()) and not any(some.any() for some in ahead)
