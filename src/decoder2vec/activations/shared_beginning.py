"""Final states of prompts that begin alike, such as one document with many queries: the beginning is computed once.

Under causal attention the states of a beginning do not depend on what follows. So its keys and values, or the recurrent
state of a state-space model, are computed once and the other tokens of every prompt continue from them.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import PastKeyValues
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values, read_only_cache
from decoder2vec.backbone.machine import any_shape_attention
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


@dataclass(frozen=True)
class Endings:
    """What follows the beginnings of some prompts."""

    rows: list[int]
    prompts: list[Prompt]
    """The prompts without their beginnings."""
    states: Tensor
    """[row, token, dim] states after the final norm."""
    n_tokens: int
    """Tokens that were computed, the beginnings included."""


class _Past(NamedTuple):
    """Beginnings that were computed, shorter ones padded on the left, so that distances to what follows are right."""

    layers: list[LayerKeyValues]
    mask: Tensor
    """[beginning, token], 0 for padding."""
    lengths: Tensor
    """Number of tokens of each beginning."""


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
    def states(self, prompts: Sequence[Prompt], groups: Sequence[Group]) -> Iterator[Endings]:
        """Yield the states of all prompts of the groups, some at a time.

        It yields nothing if the family has neither keys and values nor a recurrent state that can be shared.
        """
        run = self._run_recurrent if self._recurrent else self._run
        for together in self._planned(groups):
            beginnings = [Prompt(prompts[group.rows[0]].ids[: group.length], 0, group.length) for group in together]
            try:
                with self._computing():
                    past = self._read(beginnings)
            except UnsupportedError:
                self._supported = False
                return
            n_tokens = sum(group.length for group in together)
            for owners, rows in self._rows(prompts, together):
                endings = [_ending(prompts[row], together[n].length) for row, n in zip(rows, owners, strict=True)]
                THREADS.adjust()
                with self._computing():
                    states = run(endings, past, owners)
                yield Endings(rows, endings, states, n_tokens + sum(len(ending.ids) for ending in endings))
                n_tokens = 0  # beginnings count once

    def _planned(self, groups: Sequence[Group]) -> Iterator[list[Group]]:
        """The groups whose beginnings are computed in one pass: short ones together, as small passes are slow."""
        if self._recurrent:
            yield from ([group] for group in groups)
            return
        for batch in plan_batches([group.length for group in groups], *self._sizes()):
            yield [groups[index] for index in batch]

    def _rows(self, prompts: Sequence[Prompt], groups: Sequence[Group]) -> Iterator[tuple[list[int], list[int]]]:
        """For each pass over endings, the groups of its rows, and the rows."""
        owned = [(owner, row) for owner, group in enumerate(groups) for row in group.rows]
        lengths = [len(prompts[row].ids) - groups[owner].length for owner, row in owned]
        longest = max(group.length for group in groups)
        budget, overhead = self._sizes()
        for batch in plan_batches(lengths, budget, overhead):
            size = max(1, _PAST_BUDGET * budget // (longest + lengths[batch[0]]))
            for begin in range(0, len(batch), size):
                chosen = [owned[index] for index in batch[begin : begin + size]]
                yield [owner for owner, _ in chosen], [row for _, row in chosen]

    def _sizes(self) -> tuple[int, int]:
        """Tokens of a batch, at most, and what one more batch costs, in tokens."""
        return self._backbone.token_budget(), self._backbone.batch_overhead

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with self._backbone.lock, self._backbone.adapter_enabled(), any_shape_attention(self._backbone.device):
            yield

    def _read(self, beginnings: list[Prompt]) -> Any:
        """The recurrent state of the only beginning, or a `_Past`."""
        if self._recurrent:
            return self._backbone.model(input_ids=torch.tensor([beginnings[0].ids]), use_cache=True).cache_params
        batch = collate(beginnings, self._backbone.pad_token_id)
        mask = batch.mask if len(beginnings) > 1 else None
        layers = compute_key_values(self._backbone, input_ids=batch.ids, attention_mask=mask)
        lengths = [len(beginning.ids) for beginning in beginnings]
        aligned = [(_shifted(keys, lengths), _shifted(values, lengths)) for keys, values in layers]
        return _Past(aligned, batch.mask.flip(1), torch.tensor(lengths))

    def _run(self, endings: list[Prompt], past: _Past, owners: list[int]) -> Tensor:
        """All tokens in one pass behind keys and values; `owners` says which beginning each ending has."""
        batch = collate(endings, self._backbone.pad_token_id)
        if len(past.lengths) == 1:
            n_rows = len(endings)  # expanded, they take no memory
            layers = [(k.expand(n_rows, -1, -1, -1), v.expand(n_rows, -1, -1, -1)) for k, v in past.layers]
        else:
            layers = [(keys[owners], values[owners]) for keys, values in past.layers]
        positions = past.lengths[owners, None] + torch.arange(batch.width)
        in_front = PastKeyValues(read_only_cache(layers), past.mask[owners], positions)
        inputs = self._capture.model_inputs(replace(batch, past=in_front))
        return self._backbone.model(**inputs, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def _run_recurrent(self, endings: list[Prompt], cache: Any, _: list[int]) -> Tensor:
        """Token by token: transformers continues a recurrent state with one token at a time only."""
        ids = collate(endings, self._backbone.pad_token_id).ids
        cache = copy.deepcopy(cache)
        cache.reorder_cache(torch.zeros(len(endings), dtype=torch.long))
        model = self._backbone.model
        steps = [model(input_ids=token[:, None], cache_params=cache, use_cache=True) for token in ids.T]
        return torch.cat([step.last_hidden_state for step in steps], dim=1)


def _shifted(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """[row, head, token, width] states padded on the right, with the padding on the left instead."""
    if len(lengths) == 1:
        return states
    width = states.shape[2]
    return torch.stack([row.roll(width - length, 1) for row, length in zip(states, lengths, strict=True)])


def _ending(prompt: Prompt, length: int) -> Prompt:
    """A prompt without its first tokens."""
    return Prompt(prompt.ids[length:], max(0, prompt.start - length), prompt.end - length)


def _shared_length(ids: Sequence[list[int]], limit: int) -> int:
    """Number of tokens, at most `limit`, that all prompts begin with."""
    first, last = min(ids), max(ids)  # in lexicographic order: what these two share, all between them share
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first[:limit], last[:limit], strict=False)))
