"""Final states of prompts that begin alike, such as one document with many queries: the beginning is computed once.

Under causal attention the states of a beginning do not depend on what follows. So its keys and values, or the recurrent
state of a state-space model, are computed once and the other tokens of every prompt continue from them.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import PastKeyValues
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values, read_only_cache
from decoder2vec.backbone.machine import any_shape_attention, batch_overhead, token_budget
from decoder2vec.backbone.threads import THREADS
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt

_MIN_SAVED = 64
"""Tokens that a shared beginning must save: about what the two smaller passes cost."""
_PAST_BUDGET = 16
"""Tokens of the past, over all rows of a batch, for each token of the batch's budget: they only take memory."""


@dataclass(frozen=True)
class Group:
    """Prompts that begin with the same tokens."""

    rows: list[int]
    length: int
    """Number of tokens that are shared."""


class SharedBeginning:
    """Computes the states of prompts that begin alike.

    Args:
        backbone: The model. Beginnings are shared under causal attention on a CPU; on a GPU, attention is fastest
            without the mask that a past needs.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone, self._capture = backbone, Capture(backbone, [Reading(-1, "lasttoken", True)])
        layers = DynamicCache(config=backbone.model.config).layers
        self._recurrent = bool(layers) and all(type(layer) is LinearAttentionLayer for layer in layers)
        self._supported = True

    def groups(self, prompts: Sequence[Prompt], keys: Sequence[Hashable], first_read: Sequence[int]) -> list[Group]:
        """Return the groups of prompts for which sharing pays.

        Args:
            prompts: The prompts.
            keys: Prompts with equal keys begin alike.
            first_read: First token of each prompt whose state is needed.
        """
        backbone = self._backbone
        plain_inputs = backbone.adapter is None or backbone.adapter.continues
        if not self._supported or backbone.attention != "causal" or backbone.device.type != "cpu" or not plain_inputs:
            return []
        rows_of: dict[Hashable, list[int]] = {}
        for row, key in enumerate(keys):
            rows_of.setdefault(key, []).append(row)
        groups = []
        for rows in rows_of.values():
            length = _shared_length([prompts[row].ids for row in rows], min(first_read[row] for row in rows))
            if (len(rows) - 1) * length > _MIN_SAVED:
                groups.append(Group(rows, length))
        return groups

    @torch.inference_mode()
    def states(self, prompts: Sequence[Prompt], group: Group) -> Iterator[tuple[list[int], Tensor]]:
        """Yield rows of a group with their [row, token, dim] states after the final norm, from token `length` on.

        It yields nothing if the family has neither keys and values nor a recurrent state that can be shared.
        """
        backbone, length = self._backbone, group.length
        if not self._supported:
            return
        with backbone.lock, backbone.adapter_enabled(), any_shape_attention(backbone.device):
            ids = torch.tensor([prompts[group.rows[0]].ids[:length]], device=backbone.device)
            try:
                past = self._recurrent_states(ids) if self._recurrent else compute_key_values(backbone, input_ids=ids)
            except UnsupportedError:
                self._supported = False
                return
        lengths = [len(prompts[row].ids) - length for row in group.rows]
        budget, overhead = (measure(backbone.device, backbone.dim) for measure in (token_budget, batch_overhead))
        for batch in plan_batches(lengths, budget, overhead):
            size = max(1, _PAST_BUDGET * budget // (length + lengths[batch[0]]))
            for begin in range(0, len(batch), size):
                THREADS.adjust()
                rows = [group.rows[index] for index in batch[begin : begin + size]]
                endings = [Prompt(prompts[row].ids[length:], 0, 1) for row in rows]
                run = self._run_recurrent if self._recurrent else self._run
                with backbone.lock, backbone.adapter_enabled(), any_shape_attention(backbone.device):
                    states = run(endings, past, length)
                yield rows, states

    def _run(self, endings: list[Prompt], layers: list[LayerKeyValues], length: int) -> Tensor:
        """All tokens in one pass behind keys and values."""
        batch = collate(endings, self._backbone.pad_token_id)
        n_rows = len(endings)
        cache = read_only_cache([(k.expand(n_rows, -1, -1, -1), v.expand(n_rows, -1, -1, -1)) for k, v in layers])
        positions = torch.arange(length, length + batch.width).expand(n_rows, -1)
        past = PastKeyValues(cache, batch.mask.new_ones(n_rows, length), positions)
        inputs = self._capture.model_inputs(replace(batch, past=past))
        return self._backbone.model(**inputs, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def _recurrent_states(self, ids: Tensor) -> Any:
        return self._backbone.model(input_ids=ids, use_cache=True).cache_params

    def _run_recurrent(self, endings: list[Prompt], cache: Any, _: int) -> Tensor:
        """Token by token: transformers continues a recurrent state with one token at a time only."""
        ids = collate(endings, self._backbone.pad_token_id).ids
        cache = copy.deepcopy(cache)
        cache.reorder_cache(torch.zeros(len(endings), dtype=torch.long))
        model = self._backbone.model
        steps = [model(input_ids=token[:, None], cache_params=cache, use_cache=True) for token in ids.T]
        return torch.cat([step.last_hidden_state for step in steps], dim=1)


def _shared_length(ids: Sequence[list[int]], limit: int) -> int:
    """Number of tokens, at most `limit`, that all prompts begin with."""
    first, last = min(ids), max(ids)  # in lexicographic order: what these two share, all between them share
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first[:limit], last[:limit], strict=False)))
