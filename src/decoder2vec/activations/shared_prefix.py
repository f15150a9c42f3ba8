"""What all prompts of a batch begin with is read once, not once for each text.

Under causal attention the states of a beginning do not depend on what follows, so its keys and values can stand before
every text of the batch. The prompt before a text is such a beginning, and often a good part of a short text's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from decoder2vec.backbone.batch import Past, TokenBatch
from decoder2vec.backbone.load import Backbone
from decoder2vec.backbone.machine import batch_overhead
from decoder2vec.backbone.past import KeysValues, fixed_cache, read_keys_values
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt


class SharedPrefix:
    """Makes batches whose common beginning has been read before, where that can be done and pays.

    It remembers the last beginning, so it must not outlive a change of the weights.
    """

    def __init__(self, backbone: Backbone, depth: int) -> None:
        self._backbone, self._depth = backbone, depth
        # on a GPU attention is fastest without the mask that a past needs
        plain = backbone.attention == "causal" and backbone.adapter is None and backbone.device.type == "cpu"
        self._possible = plain and depth > 0
        self._known: tuple[list[int], list[KeysValues]] = ([], [])

    def collate(self, prompts: Sequence[Prompt]) -> TokenBatch:
        """The batch of some prompts, for the first `depth` layers."""
        length = _common(prompts) if self._possible else 0
        saved = (len(prompts) - 1) * length
        worth = saved > batch_overhead(self._backbone.device, self._backbone.dim)
        layers = self._read(prompts[0].ids[:length]) if worth else []
        if not layers:
            return collate(prompts, self._backbone.pad_id)
        rest = [Prompt(one.ids[length:], one.start - length, one.end - length) for one in prompts]
        batch = collate(rest, self._backbone.pad_id)
        rows = len(prompts)
        cache = fixed_cache([(k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)) for k, v in layers])
        positions = torch.arange(length, length + batch.width).expand(rows, -1)
        return replace(batch, past=Past(cache, batch.mask.new_ones(rows, length), positions))

    def _read(self, ids: list[int]) -> list[KeysValues]:
        if self._known[0] != ids:
            try:
                tokens = torch.tensor([ids], device=self._backbone.device)
                self._known = (ids, read_keys_values(self._backbone, self._depth, input_ids=tokens))
            except UnsupportedError:  # a family that keeps no keys and values
                self._possible = False
                return []
        return self._known[1]


def _common(prompts: Sequence[Prompt]) -> int:
    """How many tokens all prompts begin with and none pools."""
    ids = [one.ids for one in prompts]
    first, last = min(ids), max(ids)  # in the order of a dictionary: what these two share, all between them share
    alike = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return min(alike, *(min(one.start, len(one.ids) - 1) for one in prompts))
