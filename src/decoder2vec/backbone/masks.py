"""What tokens may see of each other, narrowed down for some blocks: the mask that a family gives them, less a part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

Seen = Callable[[int, int, torch.device], Tensor]
"""So many tokens, of so many that are there with those that stand before all of them, to what each may see.

A mask of booleans that fits [text, 1, token, token before all or token].
"""


def the_past(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
    """A token sees what stands before it, and itself."""
    return torch.ones(tokens, all_tokens, dtype=torch.bool, device=device).tril(all_tokens - tokens)


def narrow(blocks: Iterable[nn.Module], seen: Seen, depth: int | None = None) -> list[Any]:
    """From now on attention in a model's blocks, or in the first `depth` of them, sees no more than that.

    Blocks without attention are left alone: they see the past only, and a mask over pairs of tokens is none for them.
    Returns the handles that undo it.
    """

    def less(number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = arguments_of(type(block).forward)
        given = dict(zip(names, args, strict=False)) | kwargs
        name = "causal_mask" if "causal_mask" in names else "attention_mask"  # of both, one is for a recurrence
        mask = _narrowed(given[names[0]], given.get(name), given.values(), seen, number)
        if name in names[: len(args)]:  # some families give it by position
            place = names.index(name)
            return (*args[:place], mask, *args[place + 1 :]), kwargs
        return args, {**kwargs, name: mask}

    return [
        block.register_forward_pre_hook(partial(less, number), with_kwargs=True)
        for number, block in with_attention(list(blocks))
        if depth is None or number < depth
    ]


def with_attention(blocks: list[nn.Module]) -> list[tuple[int, nn.Module]]:
    """The blocks that have attention, and their numbers.

    Attention says in a flag of its own whether it is causal, and convolutions and recurrences have no such flag; where
    no block has one, the family is older than the flag, and all are attention.
    """
    numbered = list(enumerate(blocks))
    return [pair for pair in numbered if any(hasattr(part, "is_causal") for part in pair[1].modules())] or numbered


@contextmanager
def prefix_attention(blocks: Iterable[nn.Module], lengths: Tensor) -> Iterator[None]:
    """While this is open, tokens of a bidirectional model see the first so many of their text, and their own past.

    So a text's beginning is read in both directions, and what stands behind it is written from left to right.
    """

    def seen(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
        places = torch.arange(all_tokens, device=device) - (all_tokens - tokens)
        return the_past(tokens, all_tokens, device) | (places < lengths.to(device)[:, None, None, None])

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
def arguments_of(forward: Callable[..., Any]) -> list[str]:
    """What the blocks of a family are given, in order."""
    return list(inspect.signature(forward).parameters)[1:]
