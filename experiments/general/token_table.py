"""The tokens of millions of texts in two arrays, from which batches are packed without a loop over texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Packing, TokenBatch
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

Rows = NDArray[np.intp]
"""Indices of texts."""

_TEXTS_AT_ONCE = 10_000
"""Texts tokenised between two updates of the progress bar."""


@dataclass(frozen=True)
class TokenTable:
    """The tokens of all texts, one text after the other."""

    token_ids: NDArray[np.int32]
    lengths: NDArray[np.intp]
    """Number of tokens of each text."""
    starts: NDArray[np.intp]
    """Index of the first token of each text."""
    grouped: bool = True
    """Short texts attend in groups, which is faster; without groups there is one way of attention to compile."""

    @classmethod
    def of(cls, backbone: Backbone, texts: Sequence[str], max_length: int) -> TokenTable:
        """Tokenise texts as an encoder with the plain template does."""
        tokeniser = Tokeniser(backbone, Template.of("plain"), max_length)
        pieces = []
        lengths: list[int] = []
        with tqdm(desc="tokens", total=len(texts), unit=" texts", disable=None) as bar:
            for begin in range(0, len(texts), _TEXTS_AT_ONCE):
                prompts = tokeniser(texts[begin : begin + _TEXTS_AT_ONCE]).prompts
                pieces.append(np.concatenate([np.array(prompt.ids, np.int32) for prompt in prompts]))
                lengths += [len(prompt.ids) for prompt in prompts]
                bar.update(len(prompts))
        counts = np.array(lengths, np.intp)
        return cls(np.concatenate(pieces), counts, np.cumsum(counts) - counts)

    def pack(self, rows: Rows) -> TokenBatch:
        """The texts of these rows, packed, to be pooled as a whole."""
        packing = Packing.of(self.lengths[rows])
        packing = packing if self.grouped else replace(packing, groups=None)
        indices = np.repeat(self.starts[rows], self.lengths[rows]) + packing.positions[0].numpy()
        row = torch.from_numpy(self.token_ids[indices].astype(np.int64))[None]
        begins, ends = packing.boundaries[:-1].long(), packing.boundaries[1:].long()
        return TokenBatch(row, torch.ones_like(row), begins, ends, packing=packing)
