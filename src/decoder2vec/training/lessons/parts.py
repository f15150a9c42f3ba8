"""States of tokens, and sums over all texts of a batch that are computed part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.config import Reading
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt
from decoder2vec.training import processes
from decoder2vec.training.lessons.lesson import Classroom


class TokenStates:
    """[text, token, width] states of the top layer, after the final norm; texts are padded on the right."""

    def __init__(self, room: Classroom) -> None:
        self.backbone = room.backbone
        self.capture = Capture(room.backbone, [Reading(-1)])

    def __call__(self, prompts: Sequence[Prompt]) -> Tensor:
        """Of some texts, through the adapter."""
        backbone = self.backbone
        batch = backbone.adapt(collate(prompts, backbone.pad_token_id).to(backbone.device))
        with any_shape_attention(backbone.device):
            output = backbone.model(**self.capture.model_inputs(batch), use_cache=False)
        states: Tensor = output.last_hidden_state
        return states


Part = Callable[[list[int]], Tensor]
"""Numbers of some texts to a sum over them."""


def sum_over(room: Classroom, costs: Sequence[int], part: Part) -> Tensor:
    """The sum over all texts, each of which costs so many tokens.

    For gradients, several processes read some texts each, and all hear the sum over all of them.
    """
    if not torch.is_grad_enabled():
        return _in_parts(room, costs, range(len(costs)), part)
    own = [number for number in processes.own_part(len(costs)) if number < len(costs)]
    total = _in_parts(room, costs, own, part) if own else 0 * part([0])  # every process needs a gradient
    return processes.gather(total[None], processes.count()).sum()


def _in_parts(room: Classroom, costs: Sequence[int], own: Sequence[int], part: Part) -> Tensor:
    """Over those texts, in parts of like length; what does not fit into memory for gradients is computed twice."""
    path = room.path
    twice = torch.is_grad_enabled() and sum(costs[number] for number in own) > path.fits
    total = torch.zeros((), device=room.backbone.device)
    for places in plan_batches([costs[number] for number in own], path.fits, path.overhead):
        numbers = [own[place] for place in places]
        total = total + (checkpoint(part, numbers, use_reentrant=False) if twice else part(numbers))
    return total
