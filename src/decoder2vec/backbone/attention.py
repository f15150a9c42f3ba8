"""Causal and bidirectional attention: switch a model, verify the switch block by block, and restrict attention masks.

transformers ignores a request for bidirectional attention in some families without an error. So a switch counts only
after a check: change one token, and see in which blocks the state of the token before it changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from decoder2vec.backbone.blocks import find_blocks, text_config
from decoder2vec.errors import InputError, UnsupportedError, unknown_name

ATTENTIONS = ("causal", "bidirectional")
"""Also "bidirectional:12": causal up to layer 12 and bidirectional above it."""

MaskFunction = Callable[[int, int, torch.device], Tensor]
"""(tokens, tokens including cached ones, device) -> booleans that broadcast to [text, 1, token, cached or token].

True where a token may attend.
"""

_ROUNDING = 1e-5
"""Relative changes below this are rounding errors, as recurrences and experts produce them."""

_REASONS = {
    "gpt_neo": "its causal mask is a buffer inside every attention layer",
    "mamba": "a state-space model reads from left to right only",
    "mamba2": "a state-space model reads from left to right only",
    "falcon_mamba": "a state-space model reads from left to right only",
}

_KEPT_CAUSAL: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()
"""For each model, the number of lower blocks that stay causal in a bidirectional model, and their hook handles."""


# --- switch and verify -----------------------------------------------------------------------------------------------


def attention_from_config(model: nn.Module) -> str:
    """The attention that a model's config asks for; causal unless `is_causal` is false."""
    return "bidirectional" if getattr(model.config, "is_causal", True) is False else "causal"


def parse_attention(attention: str) -> tuple[str, int]:
    """Split "bidirectional:12" into the kind and the number of lower layers that stay causal (0 without a colon)."""
    kind, colon, layer = attention.partition(":")
    if kind not in ATTENTIONS or (colon and kind == "causal"):
        raise unknown_name("attention", attention, (*ATTENTIONS, "bidirectional:12"))
    if colon and not layer.isdecimal():
        raise InputError(f"The colon in {attention!r} must be followed by the number of a layer.")
    return kind, int(layer) if colon else 0


def set_attention(model: nn.Module, attention: str) -> None:
    """Switch the model's attention and verify it.

    Raises:
        UnsupportedError: The family cannot attend this way; the model is left as it was.

    """
    kind, lower = parse_attention(attention)
    depth = len(find_blocks(model)[1])
    if lower >= depth:
        raise InputError(f"{attention!r} leaves no layer bidirectional: the model has {depth} layers.")
    is_causal_before = getattr(model.config, "is_causal", None)
    config: Any = model.config
    text_config(config).is_causal = config.is_causal = kind == "causal"
    lower_before = _keep_causal(model, 0)
    mismatch = "not verified"
    try:
        mismatch = attention_mismatch(model, kind)
        if lower and not mismatch:
            _keep_causal(model, lower)
            mismatch = attention_mismatch(model, attention)
    finally:
        if mismatch:
            text_config(config).is_causal = config.is_causal = True if is_causal_before is None else is_causal_before
            _keep_causal(model, lower_before)
    if mismatch:
        family = text_config(config).model_type
        reason = _REASONS.get(family, mismatch)
        raise UnsupportedError(f"{family} cannot be read with {attention} attention: {reason}.")


def attention_mismatch(model: nn.Module, attention: str) -> str:
    """Return why the model does not attend as `attention` says, or "" if every block is verified.

    Checked with and without padding, which take different code paths for masks. Blocks without attention (convolutions,
    recurrences) are causal in any case.
    """
    kind, lower = parse_attention(attention)
    blocks = list(find_blocks(model)[1])
    bidirectional = [index for index, _ in attention_blocks(blocks) if kind == "bidirectional" and index >= lower]
    if kind == "bidirectional" and not bidirectional:
        return f"no layer above {lower} has attention"
    try:
        plain, padded = (sees_next_token(model, padding) for padding in (False, True))
    except RuntimeError:
        if not lower:
            raise
        # a block that was taken for attention multiplies its states by the mask, or the like
        return "its blocks take no mask over pairs of tokens"
    if bool(plain[bidirectional].all()) != bool(padded[bidirectional].all()):
        return "it attends in one direction when a batch is padded and in another when it is not"
    sees_always, sees_ever = (plain & padded).all(dim=1), (plain | padded).any(dim=1)
    if still_causal := [index for index in bidirectional if not sees_always[index]]:
        where = "" if still_causal == bidirectional else f" in {_layer_names(still_causal)}"
        return f"changing a later token does not change an earlier one{where} although the flag is set"
    causal = range(len(blocks) if kind == "causal" else lower)
    if not_causal := [index for index in causal if sees_ever[index]]:
        return f"changing a later token still changes an earlier one in {_layer_names(not_causal)}"
    return ""


@torch.inference_mode()
def sees_next_token(model: nn.Module, padded: bool, position: int = 2) -> Tensor:
    """[block, text] booleans: does the block let the token before `position` attend to the token at `position`?

    The two tokens are neighbours, so that no attention window is too small.

    Args:
        model: The model to check.
        padded: Check a padded batch, whose masks are built in another way: the first of its two texts is shorter by one
            token.
        position: The token that is changed.

    """
    device = next(model.parameters()).device
    vocab_size = text_config(model.config).vocab_size
    ids = torch.arange(7, 11, device=device).remainder(vocab_size).repeat(1 + padded, 1)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 3] = 0
    return sight(model, ids, mask, torch.full((1 + padded,), position, device=device))[:, :, position - 1]


@torch.inference_mode()
def sight(model: nn.Module, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """[block, text, token] booleans: does the block let a token attend to the one at the text's position?

    That token is changed at the input of every block, and nothing else.

    Args:
        model: The model to check.
        ids: [text, token] ids of the tokens.
        mask: [text, token], 0 for padding.
        positions: [text] token that is changed.

    """
    vocab_size = text_config(model.config).vocab_size
    changed_places = torch.arange(len(ids), device=ids.device), positions
    changed_ids = ids.clone()
    changed_ids[changed_places] = (ids[changed_places] + vocab_size // 2) % vocab_size
    original = _trace_blocks(model, ids, mask, lambda _, states: states)

    def change_one_position(block: int, states: Tensor) -> Tensor:
        inputs = original.inputs[block].clone()
        inputs[changed_places] = states[changed_places]
        return inputs

    changed = _trace_blocks(model, changed_ids, mask, change_one_position)
    return torch.stack([differs(*outputs) for outputs in zip(original.outputs, changed.outputs, strict=True)])


def attention_blocks(blocks: list[nn.Module]) -> list[tuple[int, nn.Module]]:
    """The blocks that contain attention, with their indices.

    Attention modules have a flag `is_causal`; convolutions and recurrences have none. If no block has the flag, the
    family is older than it, and all blocks are attention.
    """
    indexed = list(enumerate(blocks))
    return [pair for pair in indexed if any(hasattr(module, "is_causal") for module in pair[1].modules())] or indexed


def _layer_names(blocks: list[int]) -> str:
    """Name blocks by the layer after them, for messages."""
    return ("layer " if len(blocks) == 1 else "layers ") + ", ".join(str(index + 1) for index in blocks)


def differs(before: Tensor, after: Tensor) -> Tensor:
    """[...] booleans from two [..., width] states, relative to the size of each dimension: some are huge."""
    before, after = before.float(), after.float()
    size = before.abs()
    scale = size.maximum(size.median(dim=-1, keepdim=True).values)
    return ((after - before).abs() > _ROUNDING * scale).any(dim=-1)


@dataclass
class _BlockTrace:
    """[text, token, width] inputs and outputs of each block in one forward pass."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def _trace_blocks(
    model: nn.Module, ids: Tensor, mask: Tensor, replace_input: Callable[[int, Tensor], Tensor]
) -> _BlockTrace:
    """Run the model and record its blocks; `replace_input(block, states)` returns the states that a block gets."""
    trace, training_flags = _BlockTrace(), {module: module.training for module in model.modules()}

    def before_block(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = forward_parameters(type(block).forward)[0]
        states = replace_input(len(trace.inputs), args[0] if args else kwargs[name])
        trace.inputs.append(states.clone())
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, name: states})

    def after_block(_: nn.Module, __: Any, output: Any) -> None:
        trace.outputs.append((output[0] if isinstance(output, tuple) else output).clone())

    handles: list[Any] = []
    for block in dict.fromkeys(find_blocks(model)[1]):
        handles.append(block.register_forward_pre_hook(before_block, with_kwargs=True))
        handles.append(block.register_forward_hook(after_block))
    try:
        model.eval()  # dropout would change every state
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        for module, training in training_flags.items():
            module.training = training
        for handle in handles:
            handle.remove()
    return trace


def _keep_causal(model: nn.Module, depth: int) -> int:
    """Keep the first `depth` blocks of a bidirectional model causal, and no others; return the previous depth."""
    before, handles = _KEPT_CAUSAL.pop(model, (0, []))
    for handle in handles:
        handle.remove()
    if depth:
        _KEPT_CAUSAL[model] = depth, restrict_attention(find_blocks(model)[1], causal_mask, depth)
    return before


# --- prefix language models ------------------------------------------------------------------------------------------


@contextmanager
def prefix_lm_attention(blocks: Iterable[nn.Module], lengths: Tensor) -> Iterator[None]:
    """Context in which a bidirectional model is a prefix language model.

    Tokens attend to the prefix of their text and to what precedes them: the prefix is read in both directions, and what
    follows it is generated from left to right.

    Args:
        blocks: The blocks of the model.
        lengths: [text] number of tokens of each prefix.

    """

    def prefix_or_past(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
        positions = torch.arange(all_tokens, device=device) - (all_tokens - tokens)
        return causal_mask(tokens, all_tokens, device) | (positions < lengths.to(device)[:, None, None, None])

    handles = restrict_attention(blocks, prefix_or_past)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_prefix_lm_attention(model: nn.Module) -> None:
    """Verify that `prefix_lm_attention` works on the model; raise UnsupportedError if it does not."""
    try:
        verified = all(_attends_as_prefix_lm(model, padded) for padded in (False, True))
    except RuntimeError:  # blocks that are not attention get a mask of the wrong shape
        verified = False
    if not verified:
        family = text_config(model.config).model_type
        raise UnsupportedError(f"{family} cannot read a prefix in both directions and continue from left to right.")


def _attends_as_prefix_lm(model: nn.Module, padded: bool) -> bool:
    blocks = find_blocks(model)[1]
    with prefix_lm_attention(blocks, torch.tensor([2] * (1 + padded))):
        in_prefix, *after_prefix = (sees_next_token(model, padded, position) for position in (1, 2, 3))
    with_attention = [index for index, _ in attention_blocks(list(blocks))]
    return bool(in_prefix[with_attention].all()) and not any(sees.any() for sees in after_prefix)


# --- masks -----------------------------------------------------------------------------------------------------------


def causal_mask(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
    """[tokens, all_tokens] booleans: a token attends to itself and to what precedes it."""
    return torch.ones(tokens, all_tokens, dtype=torch.bool, device=device).tril(all_tokens - tokens)


def restrict_attention(
    blocks: Iterable[nn.Module], allowed: MaskFunction, depth: int | None = None, outside: Container[int] = ()
) -> list[Any]:
    """Restrict the attention mask of blocks, by hooks, to what `allowed` permits.

    Blocks without attention are left alone: they are causal, and no mask over pairs of tokens applies to them.

    Args:
        blocks: The blocks of a model.
        allowed: The mask that is combined with the block's own.
        depth: Restrict the first `depth` blocks only.
        outside: Indices of blocks to leave alone.

    Returns:
        The handles that remove the hooks.

    """

    def restrict(index: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = forward_parameters(type(block).forward)
        inputs = dict(zip(names, args, strict=False)) | kwargs
        # a block with both names uses attention_mask for its recurrence
        name = "causal_mask" if "causal_mask" in names else "attention_mask"
        mask = _restrict_mask(inputs[names[0]], inputs.get(name), inputs.values(), allowed, index)
        if name in names[: len(args)]:  # some families pass it by position
            at = names.index(name)
            return (*args[:at], mask, *args[at + 1 :]), kwargs
        return args, {**kwargs, name: mask}

    return [
        block.register_forward_pre_hook(partial(restrict, index), with_kwargs=True)
        for index, block in attention_blocks(list(blocks))
        if (depth is None or index < depth) and index not in outside
    ]


@cache
def forward_parameters(forward: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a block's `forward`, in order and without `self`."""
    return list(inspect.signature(forward).parameters)[1:]


def _restrict_mask(states: Tensor, mask: Any, inputs: Iterable[Any], allowed: MaskFunction, index: int) -> Any:
    """Combine the mask of block `index` with `allowed`; masks are booleans or added to the attention scores."""
    tokens = states.shape[1]
    if mask is None:  # all tokens are visible, cached ones included
        kv_cache = next((value for value in inputs if isinstance(value, Cache)), None)
        cached_tokens = kv_cache.get_seq_length(index) if kv_cache else 0
        mask = states.new_zeros(len(states), 1, tokens, cached_tokens + tokens)
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return mask  # not a mask over pairs of tokens: the check of `set_attention` will fail
    visible = allowed(tokens, mask.shape[-1], states.device)
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, torch.finfo(mask.dtype).min)
