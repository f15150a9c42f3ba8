"""Which blocks of a model let a token see a later one, found out by trying.

Every block is asked by itself: it is given the states of a text, then the same with one token's states exchanged, and
what it makes of the token before is compared. So a block that cannot see ahead is found among others that can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.layers import find_blocks, text_config
from decoder2vec.backbone.masks import arguments_of

_ROUNDING = 1e-5
"""Numbers that move by a smaller part of themselves have been rounded otherwise, as recurrences and experts do."""


@torch.inference_mode()
def looks_ahead(model: nn.Module, padded: bool, changed: int = 2) -> Tensor:
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
        name = arguments_of(type(block).forward)[0]
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
