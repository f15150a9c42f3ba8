"""What tokens may see of each other, narrowed down for some blocks: the mask that a family gives them, less a part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
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

Seen = Callable[[int, int, torch.device], Tensor]
"""So many tokens, of so many that are there with those that stand before all of them, to what each may see.

A mask of booleans that fits [text, 1, token, token before all or token].
"""


def causal_mask(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
    """A token sees what stands before it, and itself."""
    return torch.ones(tokens, all_tokens, dtype=torch.bool, device=device).tril(all_tokens - tokens)


def narrow(blocks: Iterable[nn.Module], seen: Seen, depth: int | None = None) -> list[Any]:
    """From now on attention in a model's blocks, or in the first `depth` of them, sees no more than that.

    Blocks without attention are left alone: they see the past only, and a mask over pairs of tokens is none for them.
    Returns the handles that undo it.
    """

    def less(number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = forward_parameters(type(block).forward)
        given = dict(zip(names, args, strict=False)) | kwargs
        name = "causal_mask" if "causal_mask" in names else "attention_mask"  # of both, one is for a recurrence
        mask = _narrowed(given[names[0]], given.get(name), given.values(), seen, number)
        if name in names[: len(args)]:  # some families give it by position
            place = names.index(name)
            return (*args[:place], mask, *args[place + 1 :]), kwargs
        return args, {**kwargs, name: mask}

    return [
        block.register_forward_pre_hook(partial(less, number), with_kwargs=True)
        for number, block in attention_blocks(list(blocks))
        if depth is None or number < depth
    ]


def attention_blocks(blocks: list[nn.Module]) -> list[tuple[int, nn.Module]]:
    """The blocks that have attention, and their numbers.

    Attention says in a flag of its own whether it is causal, and convolutions and recurrences have no such flag; where
    no block has one, the family is older than the flag, and all are attention.
    """
    numbered = list(enumerate(blocks))
    return [pair for pair in numbered if any(hasattr(part, "is_causal") for part in pair[1].modules())] or numbered


@contextmanager
def prefix_lm_attention(blocks: Iterable[nn.Module], lengths: Tensor) -> Iterator[None]:
    """While this is open, tokens of a bidirectional model see the first so many of their text, and their own past.

    So a text's beginning is read in both directions, and what stands behind it is written from left to right.
    """

    def seen(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
        places = torch.arange(all_tokens, device=device) - (all_tokens - tokens)
        return causal_mask(tokens, all_tokens, device) | (places < lengths.to(device)[:, None, None, None])

    handles = narrow(blocks, seen)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _narrowed(states: Tensor, mask: Any, given: Iterable[Any], seen: Seen, number: int) -> Any:
    """The mask that block `number` is given, narrowed; some families add it to the weights, as numbers."""
    tokens = states.shape[1]
    if mask is None:  # all is seen, what its memory holds before all tokens included
        memory = next((value for value in given if isinstance(value, Cache)), None)
        before = memory.get_seq_length(number) if memory else 0
        mask = states.new_zeros(len(states), 1, tokens, before + tokens)
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return mask  # none over pairs of tokens: the proof will say so
    own = seen(tokens, mask.shape[-1], states.device)
    return mask & own if mask.dtype == torch.bool else mask.masked_fill(~own, torch.finfo(mask.dtype).min)


@cache
def forward_parameters(forward: Callable[..., Any]) -> list[str]:
    """What the blocks of a family are given, in order."""
    return list(inspect.signature(forward).parameters)[1:]


_ROUNDING = 1e-5
"""Numbers that move by a smaller part of themselves have been rounded otherwise, as recurrences and experts do."""


@torch.inference_mode()
def sees_next_token(model: nn.Module, padded: bool, changed: int = 2) -> Tensor:
    """[block, text] booleans: does that block let the token before `changed` see it?

    Neighbours, so that no attention window is too small. In a padded batch, whose masks are made in another way, the
    first of two texts ends one token earlier.
    """
    device = next(model.parameters()).device
    size = text_config(model.config).vocab_size
    ids = torch.arange(7, 11, device=device).remainder(size).repeat(1 + padded, 1)
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + size // 2) % size
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 3] = 0
    first = _read(model, ids, mask, lambda _, states: states)

    def exchanged(number: int, states: Tensor) -> Tensor:
        given = first.given[number].clone()
        given[:, changed] = states[:, changed]
        return given

    second = _read(model, other, mask, exchanged)
    pairs = zip(first.made, second.made, strict=True)
    return torch.stack([_moved(before[:, changed - 1], after[:, changed - 1]) for before, after in pairs])


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """[text, width] states of a token, twice, to [text] booleans, by the scale of each dimension: some are huge."""
    before, after = before.float(), after.float()
    size = before.abs()
    scale = size.maximum(size.median(dim=-1, keepdim=True).values)
    return ((after - before).abs() > _ROUNDING * scale).any(dim=-1)


@dataclass
class _Passage:
    """What each block was given, and what it made of it: [text, token, width]."""

    given: list[Tensor] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)


def _read(model: nn.Module, ids: Tensor, mask: Tensor, give: Callable[[int, Tensor], Tensor]) -> _Passage:
    """Read texts; `give` may exchange the states that a block, by its number, is given."""
    passage, modes = _Passage(), {part: part.training for part in model.modules()}

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = forward_parameters(type(block).forward)[0]
        states = give(len(passage.given), args[0] if args else kwargs[name])
        passage.given.append(states.clone())
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, name: states})

    def after(_: nn.Module, __: Any, output: Any) -> None:
        passage.made.append((output[0] if isinstance(output, tuple) else output).clone())

    handles: list[Any] = []
    for block in dict.fromkeys(find_blocks(model)[1]):
        handles += block.register_forward_pre_hook(before, with_kwargs=True), block.register_forward_hook(after)
    try:
        model.eval()  # dropout would move everything
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        for part, training in modes.items():
            part.training = training
        for handle in handles:
            handle.remove()
    return passage


ATTENTIONS = ("causal", "bidirectional")
"""Also bidirectional:12, which is causal up to layer 12 and looks both ways above it."""

_REASONS = {
    "gpt_neo": "its causal mask is a buffer inside every attention layer",
    "mamba": "a state-space model reads from left to right only",
    "mamba2": "a state-space model reads from left to right only",
    "falcon_mamba": "a state-space model reads from left to right only",
}


def attention_from_config(model: nn.Module) -> str:
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
        fault = attention_mismatch(model, kind)
        if lower and not fault:
            _keep_causal(model, lower)
            fault = attention_mismatch(model, attention)
    finally:
        if fault:
            text_config(config).is_causal = config.is_causal = True if before is None else before
            _keep_causal(model, kept)
    if fault:
        family = text_config(config).model_type
        raise UnsupportedError(f"{family} cannot be read with {attention} attention: {_REASONS.get(family, fault)}.")


def attention_mismatch(model: nn.Module, attention: str) -> str:
    """What speaks against it that the model reads that way; nothing if every block is proved to.

    Asked with and without padding, which take different mask paths. Blocks without attention read from left to right,
    whatever attention does.
    """
    kind, lower = parse_attention(attention)
    blocks = list(find_blocks(model)[1])
    both = [number for number, _ in attention_blocks(blocks) if kind == "bidirectional" and number >= lower]
    if kind == "bidirectional" and not both:
        return f"no layer above {lower} has attention"
    try:
        seen = [sees_next_token(model, padded) for padded in (False, True)]
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
        _KEPT_CAUSAL[model] = depth, narrow(find_blocks(model)[1], causal_mask, depth)
    return before


def check_prefix_lm_attention(model: nn.Module) -> None:
    """Prove that `prefix_lm_attention` holds: both directions within the prefix, and none ahead behind it."""
    try:
        proved = all(_reads_prefixes(model, padded) for padded in (False, True))
    except RuntimeError:  # blocks that are no attention are given a mask of other sizes
        proved = False
    if not proved:
        family = text_config(model.config).model_type
        raise UnsupportedError(f"{family} cannot read a beginning in both directions and go on from left to right.")


def _reads_prefixes(model: nn.Module, padded: bool) -> bool:
    blocks = find_blocks(model)[1]
    with prefix_lm_attention(blocks, torch.tensor([2] * (1 + padded))):
        inside, *ahead = (sees_next_token(model, padded, changed=place) for place in (1, 2, 3))
    attention = [number for number, _ in attention_blocks(list(blocks))]
    return bool(inside[attention].all()) and not any(some.any() for some in ahead)
