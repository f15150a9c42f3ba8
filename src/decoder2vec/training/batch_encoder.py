"""Texts to vectors with gradients, in the cheapest way that a recipe allows.

A batch is encoded in chunks of similar length. Where their activations together would not fit into memory, each chunk
is computed twice: once for its vectors, and again, with the same dropout, when the gradients of the vectors are known
(GradCache).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.prefix_kv import KeysValuesLookup, cache_keys_values
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch, move_to_device
from decoder2vec.backbone.machine import training_batch_overhead, training_token_budget
from decoder2vec.backbone.packing import longest_packed_text, packing_pays
from decoder2vec.backbone.sharding import is_sharded
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.batches import collate, pack, plan_batches, plan_rows
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.distributed import (
    broadcast,
    gather_rows,
    local_share,
    own_random_numbers,
    rank,
    world_size,
)

log = logging.getLogger(__name__)

_CACHED_PER_COMPUTED = 16
"""Attending to this many cached tokens takes as long as computing one."""

FSDP_RECOMPUTES = torch.__version__ >= TorchVersion("2.13")
"""In torch 2.9 the second pass, in the middle of a backward pass, finds weights that FSDP has not gathered."""

EncodeChunk = Callable[[Sequence[int]], Tensor]
"""Rows of texts of similar length to their vectors [texts, dim]."""


class BatchEncoder:
    """Rows of texts in, vectors with gradients out."""

    def __init__(
        self,
        encode_chunk: EncodeChunk,
        costs: Sequence[int],
        backbone: Backbone,
        budget: int = 0,
        *,
        packed: bool = False,
        compiled: bool = False,
    ) -> None:
        """Wrap a function that encodes one chunk.

        Args:
            encode_chunk: Encodes some rows.
            costs: Cost of each text, in tokens.
            backbone: Determines device and memory.
            budget: Tokens whose activations are held in memory at once; 0: what fits.
            packed: Whether chunks are packed, so that texts of different lengths may share one.
            compiled: Whether blocks run compiled, which leaves fewer activations.

        """
        self.encode_chunk, self.costs, self.packed = encode_chunk, np.asarray(costs), packed
        self.device = backbone.device
        self.overhead = training_batch_overhead(backbone.device, backbone.dim)
        self.is_sharded = is_sharded(backbone.model)
        self.budget = budget or training_token_budget(
            backbone.device, backbone.dim, backbone.n_layers, compiled=compiled
        )
        if self.is_sharded and not budget:  # all processes plan the same passes
            self.budget = broadcast(lambda: self.budget)

    def __call__(self, rows: Sequence[int]) -> Tensor:
        """[texts, dim] vectors; with gradients enabled, each process computes its share and gathers the rest."""
        training = torch.is_grad_enabled()
        local = _rows_of(rank(), rows) if training else list(rows)
        chunks = list(self._plan(self.costs[local].tolist()))
        n_passes, recompute = len(chunks), training and self._recomputes(local)
        if training and self.is_sharded:  # a pass exchanges weights, so all processes must run equally many
            shares = [_rows_of(process, rows) for process in range(world_size())]
            n_passes = max(len(list(self._plan(self.costs[share].tolist()))) for share in shares)
            recompute = any(map(self._recomputes, shares))
            if recompute and not FSDP_RECOMPUTES:
                raise UnsupportedError(
                    f"A batch that does not fit is computed twice, which torch {torch.__version__} cannot with FSDP; "
                    "make training.batch smaller or chunk larger, or install torch 2.13 or newer."
                )
        encode: EncodeChunk = self.encode_chunk
        if recompute:
            encode = partial(checkpoint, self.encode_chunk, use_reentrant=False)
        vectors, order = [], []
        with own_random_numbers(self.device) if training else nullcontext():
            for chunk in chunks:
                vectors.append(encode([local[index] for index in chunk]))
                order += chunk
            vectors += [encode(local[:1])[:0] for _ in range(n_passes - len(chunks))]
        restored = torch.cat(vectors)
        if order != sorted(order):
            restored = restored[move_to_device(torch.from_numpy(np.argsort(order)), self.device)]
        return gather_rows(restored, len(rows)) if training else restored

    def _recomputes(self, rows: Sequence[int]) -> bool:
        """Whether the activations of some rows do not fit into memory together."""
        return bool(self.costs[rows].sum() > self.budget)

    def _plan(self, costs: list[int]) -> Iterator[list[int]]:
        """The texts of each chunk; packed ones are even, since blocks are compiled again for much smaller ones."""
        if self.packed:
            return plan_rows(costs, self.budget, even=True)
        return plan_batches(costs, self.budget, self.overhead)


def _rows_of(process: int, rows: Sequence[int]) -> list[int]:
    """The rows that a process encodes; all gather equally many, so the last one may repeat the last row."""
    return [int(rows[min(index, len(rows) - 1)]) for index in local_share(len(rows), process)]


def choose_batch_encoder(
    backbone: Backbone,
    prompts: Sequence[Prompt],
    reading: Reading,
    *,
    extra_tokens: int = 0,
    suffix_only: bool = False,
    cache_bytes: int = 0,
    budget: int = 0,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
) -> BatchEncoder:
    """The cheapest encoder of the prompts that is exact for an adapted backbone.

    Args:
        backbone: With its adapter attached.
        prompts: Tokenised texts; rows refer to these.
        reading: The vector that is trained.
        extra_tokens: Positions the adapter adds to each text.
        suffix_only: The adapter is a soft prompt behind causal texts, so only the prompt must run in every step, on
            cached keys and values of the texts; models without keys and values still run every token.
        cache_bytes: Keys and values are cached on disk up to this size, and recomputed beyond it.
        budget: Tokens whose activations are held in memory at once; 0: what fits.
        dtype: What the model computes in; by default the dtype of its weights.
        compiled: Whether blocks run compiled.

    """
    costs = [len(prompt.ids) + extra_tokens for prompt in prompts]
    packed = packing_pays(backbone, dtype) and max(costs, default=0) <= longest_packed_text(backbone)
    encode_chunk = token_encoder(backbone, prompts, reading, packed=packed)
    if suffix_only:
        try:
            memory = cache_keys_values(backbone, prompts, reading.layer, cache_bytes)
        except UnsupportedError as error:
            log.info("Every token is encoded in every step: %s", error)
        else:
            encode_chunk, costs = suffix_encoder(backbone, memory, reading), suffix_costs(prompts, extra_tokens)
            packed = False
    return BatchEncoder(encode_chunk, costs, backbone, budget, packed=packed, compiled=compiled)


def token_encoder(
    backbone: Backbone, prompts: Sequence[Prompt], reading: Reading, *, packed: bool = False
) -> EncodeChunk:
    """Return an encoder that runs every token, forward and backward; of packed or padded chunks."""
    capture = Capture(backbone, [reading])

    def encode(rows: Sequence[int]) -> Tensor:
        chunk = [prompts[row] for row in rows]
        batch = pack(chunk) if packed else collate(chunk, backbone.pad_token_id)
        return capture(batch.to(backbone.device))[:, 0]

    return encode


def suffix_encoder(backbone: Backbone, memory: KeysValuesLookup, reading: Reading) -> EncodeChunk:
    """Return an encoder that runs only the tokens of an appended soft prompt, on keys and values of the texts."""
    prompt = backbone.adapter
    assert isinstance(prompt, SoftPrompt) and prompt.position == "append"
    capture = Capture(backbone.with_adapter(None), [reading])

    def encode(rows: Sequence[int]) -> Tensor:
        n_texts, tokens = len(rows), len(prompt.vectors)
        past = memory(rows).as_past(tokens)
        start = torch.zeros(n_texts, dtype=torch.long, device=backbone.device)
        mask = torch.ones(n_texts, tokens, dtype=torch.long, device=backbone.device)
        embeds = prompt.vectors.to(backbone.dtype).expand(n_texts, -1, -1)
        return capture(TokenBatch(mask, mask, start, start + tokens, embeds=embeds, past=past))[:, 0]

    return encode


def suffix_costs(prompts: Sequence[Prompt], tokens: int) -> list[int]:
    """Cost of each text if only `tokens` run behind its cached keys and values.

    Cached padding costs next to nothing, so texts of rather different lengths share a chunk.
    """
    return [tokens + -(-len(prompt.ids) // _CACHED_PER_COMPUTED) for prompt in prompts]
