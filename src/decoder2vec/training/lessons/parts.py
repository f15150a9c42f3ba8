"""States of tokens, and sums over all texts of a batch that are computed part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.machine import steady_attention
from decoder2vec.spec import Reading
from decoder2vec.text.batches import collate, plan
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.lessons.lesson import Classroom
from decoder2vec.training.processes import own_part


class TokenStates:
    """[text, token, width] states of the top layer, after the final norm; texts are padded on the right."""

    def __init__(self, room: Classroom) -> None:
        self.backbone = room.backbone
        self.capture = Capture(room.backbone, [Reading(-1)])

    def __call__(self, prompts: Sequence[Prompt]) -> Tensor:
        """Of some texts, through the adapter."""
        backbone = self.backbone
        batch = backbone.adapt(collate(prompts, backbone.pad_id).to(backbone.device))
        with steady_attention(backbone.device):
            output = backbone.model(**self.capture.model_inputs(batch), use_cache=False)
        states: Tensor = output.last_hidden_state
        return states


def sum_over(room: Classroom, costs: Sequence[int], part: Callable[[list[int]], Tensor]) -> Tensor:
    """The sum of `part` over all texts, given by number, each of which costs so many tokens.

    What does not fit into memory for gradients is computed twice, part by part; several processes take a share each.
    """
    learning = torch.is_grad_enabled()
    own = [number for number in (own_part(len(costs)) if learning else range(len(costs))) if number < len(costs)]
    path = room.path
    twice = learning and sum(costs[number] for number in own) > path.fits
    total = torch.zeros((), device=room.backbone.device)
    for places in plan([costs[number] for number in own], path.fits, path.overhead):
        numbers = [own[place] for place in places]
        total = total + (checkpoint(part, numbers, use_reentrant=False) if twice else part(numbers))
    return total
