"""Static embeddings: the mean of a model's input-embedding rows. What a language model knows before it reads."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from decoder2vec.backbone.load import Backbone
from decoder2vec.evaluation.baselines.baseline import Baseline, Vectors
from decoder2vec.spec import fingerprint

_AT_ONCE = 1024


class StaticEmbeddings(Baseline):
    """Every token of a text counts alike, in any order; a text without tokens is the zero vector."""

    kind = "static"

    def __init__(self, model: str | Path) -> None:
        backbone = Backbone.load(model, device="cpu", dtype="float32")
        self.model = backbone.name
        self.tokenizer = backbone.tokenizer
        self.rows: torch.Tensor = backbone.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
        self.dim = int(self.rows.shape[1])
        self.parameters = self.rows.numel()
        self.fingerprint = fingerprint("static", backbone.fingerprint)

    @torch.inference_mode()
    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] means."""
        parts = [self._means(texts[begin : begin + _AT_ONCE]) for begin in range(0, len(texts), _AT_ONCE)]
        return np.concatenate(parts)

    def _means(self, texts: list[str]) -> Vectors:
        ids = self.tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False).input_ids
        begins = np.cumsum([0, *map(len, ids[:-1])])
        flat = torch.tensor(list(chain.from_iterable(ids)), dtype=torch.long)
        return np.asarray(embedding_bag(flat, self.rows, torch.as_tensor(begins), mode="mean").numpy())

    def __repr__(self) -> str:
        return f"static embeddings of {self.model} ({self.dim} numbers)"
