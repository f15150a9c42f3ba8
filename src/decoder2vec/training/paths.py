"""From texts to vectors with gradients, by the cheapest path that a recipe allows.

A batch is read in parts of like length. Where all its parts together would not fit into memory, each is computed twice:
once for its vectors, and again, with the same dropout, when the gradients of the vectors are known (GradCache).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.prefix_kv import KeysValuesLookup, cache_keys_values
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.machine import batch_overhead, training_token_budget
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.recipes.adapting import Adapting, Reads
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.processes import gather, own_part

log = logging.getLogger(__name__)

_REMEMBERED_FOR_ONE = 16
"""So many tokens are remembered in the time that one is computed in."""

Part = Callable[[Sequence[int]], Tensor]
"""Numbers of some texts of like length to their vectors [text, dim]."""


class Path:
    """Numbers of texts in, vectors out."""

    def __init__(self, part: Part, costs: Sequence[int], backbone: Backbone, chunk: int) -> None:
        self.part, self.costs = part, np.asarray(costs)  # of each text, in tokens
        self.device = backbone.device
        self.overhead = batch_overhead(backbone.device, backbone.dim)
        self.fits = chunk or training_token_budget(backbone.device, backbone.dim, backbone.n_layers)

    def __call__(self, rows: Sequence[int]) -> Tensor:
        """[text, dim] vectors; for gradients, several processes compute some of them each."""
        shared = torch.is_grad_enabled()
        own = [int(rows[min(number, len(rows) - 1)]) for number in own_part(len(rows))] if shared else list(rows)
        costs = self.costs[own]
        twice = bool(shared and costs.sum() > self.fits)
        vectors, places = [], []
        for places_of_part in plan_batches(costs.tolist(), self.fits, self.overhead):
            texts = [own[place] for place in places_of_part]
            vectors.append(checkpoint(self.part, texts, use_reentrant=False) if twice else self.part(texts))
            places += places_of_part
        order = torch.from_numpy(np.argsort(places)).to(self.device)
        found = torch.cat(vectors)[order]
        return gather(found, len(rows)) if shared else found


def pick_path(recipe: Adapting, backbone: Backbone, prompts: Sequence[Prompt], reading: Reading) -> Path:
    """The cheapest legal path for an adapted backbone; a short cut that the family does not have is not taken."""
    lengths = [len(prompt.ids) + recipe.extra_tokens for prompt in prompts]
    part = token_part(backbone, prompts, reading)
    if recipe.reads is Reads.PREFIX_KV:
        try:
            memory = cache_keys_values(backbone, prompts, reading.layer, recipe.remembered_bytes)
        except UnsupportedError as error:
            log.info("Every token is read in every step: %s", error)
        else:
            part, lengths = suffix_part(backbone, memory, reading), suffix_costs(prompts, recipe.extra_tokens)
    return Path(part, lengths, backbone, recipe.chunk)


def token_part(backbone: Backbone, prompts: Sequence[Prompt], reading: Reading) -> Part:
    """Every token, forward and backward."""
    capture = Capture(backbone, [reading])

    def part(rows: Sequence[int]) -> Tensor:
        return capture(collate([prompts[row] for row in rows], backbone.pad_token_id).to(backbone.device))[:, 0]

    return part


def suffix_costs(prompts: Sequence[Prompt], tokens: int) -> list[int]:
    """What a text costs behind which only a prompt runs, in tokens: those of the prompt, and a little to remember it.

    So texts of rather different lengths go together, since padding that is only remembered costs next to nothing.
    """
    return [tokens + -(-len(prompt.ids) // _REMEMBERED_FOR_ONE) for prompt in prompts]


def suffix_part(backbone: Backbone, memory: KeysValuesLookup, reading: Reading) -> Part:
    """Only the tokens of a soft prompt, behind texts whose keys and values are remembered."""
    prompt = backbone.adapter
    assert isinstance(prompt, SoftPrompt) and prompt.position == "append"
    capture = Capture(backbone.with_adapter(None), [reading])

    def part(rows: Sequence[int]) -> Tensor:
        remembered = memory(rows)
        count, tokens = len(rows), len(prompt.vectors)
        start = torch.zeros(count, dtype=torch.long, device=backbone.device)
        mask = torch.ones(count, tokens, dtype=torch.long, device=backbone.device)
        embeds = prompt.vectors.to(backbone.dtype).expand(count, -1, -1)
        past = remembered.as_past(tokens)
        return capture(TokenBatch(mask, mask, start, start + tokens, embeds=embeds, past=past))[:, 0]

    return part
