"""The best few of a search scored once more, each beside the query: slower than vectors alone, and sharper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from decoder2vec.errors import InputError


class Reranker(Protocol):
    """Anything that scores texts for a query; a later kind needs nothing but this."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A score for each text: the higher, the better it answers."""


class PairReranker:
    """The pair head of a trained encoder: `Encoder.score`, which compares two texts layer by layer."""

    def __init__(self, encoder: Any) -> None:
        if not callable(getattr(encoder, "score", None)):
            raise InputError("To rerank, an encoder must have `score`; a trained encoder of this package has it.")
        self.encoder = encoder

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Scores between 0 and 1."""
        if not texts:
            return []
        return [float(score) for score in np.asarray(self.encoder.score([query] * len(texts), list(texts)))]
