"""States of single tokens, and sums over a batch that is computed in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt
from decoder2vec.training import distributed
from decoder2vec.training.context import TokenContext


class TokenStates:
    """[texts, tokens, width] states of the top layer, after the final norm; texts are padded on the right."""

    def __init__(self, context: TokenContext) -> None:
        if context.is_sharded:
            raise UnsupportedError("Objectives that predict tokens do not train with FSDP; leave out fsdp.")
        self.backbone = context.backbone
        self.capture = Capture(context.backbone, [Reading(-1)])

    def __call__(self, prompts: Sequence[Prompt]) -> Tensor:
        """The states of some texts, through the adapter."""
        return self.of_batch(collate(prompts, self.backbone.pad_token_id).to(self.backbone.device))

    def of_batch(self, batch: TokenBatch) -> Tensor:
        """The states of a batch on the model's device, through the adapter."""
        backbone = self.backbone
        batch = backbone.adapt(batch)
        with backbone.adapter_enabled(batch), any_shape_attention(backbone.device):
            output = backbone.model(**self.capture.model_inputs(batch), use_cache=False)
        states: Tensor = output.last_hidden_state
        return states


SumOfChunk = Callable[[list[int]], Tensor]
"""Indices of some texts to a sum over them."""


def sum_over_texts(context: TokenContext, costs: Sequence[int], sum_of_chunk: SumOfChunk) -> Tensor:
    """The sum over all texts of a batch, each of which costs some tokens.

    With gradients enabled, each process computes its share, and all get the total.
    """
    if not torch.is_grad_enabled():
        return _sum_chunks(context, costs, range(len(costs)), sum_of_chunk)
    local = [index for index in distributed.local_share(len(costs)) if index < len(costs)]
    # a process without texts still needs a gradient
    with distributed.own_random_numbers(context.device):
        total = _sum_chunks(context, costs, local, sum_of_chunk) if local else 0 * sum_of_chunk([0])
    return distributed.gather_rows(total[None], distributed.world_size()).sum()


def _sum_chunks(
    context: TokenContext, costs: Sequence[int], indices: Sequence[int], sum_of_chunk: SumOfChunk
) -> Tensor:
    """The sum over some texts in chunks of similar length; chunks that do not fit together are recomputed backward."""
    encoder = context.batch_encoder
    recompute = torch.is_grad_enabled() and sum(costs[index] for index in indices) > encoder.budget
    total = torch.zeros((), device=context.device)
    for chunk in plan_batches([costs[index] for index in indices], encoder.budget, encoder.overhead):
        texts = [indices[position] for position in chunk]
        total = total + (checkpoint(sum_of_chunk, texts, use_reentrant=False) if recompute else sum_of_chunk(texts))
    return total
