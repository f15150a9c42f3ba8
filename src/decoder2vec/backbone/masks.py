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


def narrow(blocks: Iterable[nn.Module], seen: Seen) -> list[Any]:
    """From now on these blocks, the first of a model, see no more than that; returns the handles that undo it."""

    def less(number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = _arguments(type(block).forward)
        given = dict(zip(names, args, strict=False)) | kwargs
        mask = _narrowed(given, seen, number)
        place = names.index("attention_mask")
        if place < len(args):  # some families give it by position
            return (*args[:place], mask, *args[place + 1 :]), kwargs
        return args, {**kwargs, "attention_mask": mask}

    return [
        block.register_forward_pre_hook(partial(less, number), with_kwargs=True) for number, block in enumerate(blocks)
    ]


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


def _narrowed(given: dict[str, Any], seen: Seen, number: int) -> Any:
    """The mask that block `number` is given, narrowed; some families add it to the weights, as numbers."""
    states, mask = given["hidden_states"], given.get("attention_mask")
    tokens = states.shape[1]
    if mask is None:  # all is seen, what its memory holds before all tokens included
        memory = next((value for value in given.values() if isinstance(value, Cache)), None)
        before = memory.get_seq_length(number) if memory else 0
        mask = states.new_zeros(len(states), 1, tokens, before + tokens)
    if mask.ndim != 4:
        return mask  # none over pairs of tokens: the proof will say so
    own = seen(tokens, mask.shape[-1], states.device)
    return mask & own if mask.dtype == torch.bool else mask.masked_fill(~own, torch.finfo(mask.dtype).min)


@cache
def _arguments(forward: Callable[..., Any]) -> list[str]:
    """What the blocks of a family are given, in order."""
    return list(inspect.signature(forward).parameters)[1:]
