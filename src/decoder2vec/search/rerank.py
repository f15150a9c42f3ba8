"""The best few of a search scored once more, each beside the query: slower than vectors alone, and sharper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.special import expit
from torch.nn.functional import binary_cross_entropy_with_logits

from decoder2vec.errors import InputError
from decoder2vec.search.store import Space, Vectors, vectors_of
from decoder2vec.storage import atomic_file
from decoder2vec.text.files import ScoredPairs


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


_STEPS = 200
_DRAWN_BACK = 1.0
"""How strongly weights are drawn back to 1, in pairs."""


class PairHead:
    """Scores of pairs between 0 and 1; a `Reranker`."""

    def __init__(self, encoder: Any, weights: NDArray[np.float64], scale: float, offset: float) -> None:
        self.encoder, self.weights, self.scale, self.offset = encoder, weights, scale, offset

    @classmethod
    def fit(cls, encoder: Any, pairs: ScoredPairs) -> PairHead:
        """Learn from scored pairs; the lowest score is taken as 0, the highest as 1."""
        low, high = min(pairs.scores), max(pairs.scores)
        if low == high:
            raise InputError(f"All pairs of {pairs.name} have the score {low}; there is nothing to learn.")
        place = {text: row for row, text in enumerate(pairs.texts())}
        vectors = vectors_of(encoder, list(place), "document")
        left, right = (vectors[[place[text] for text in side]] for side in (pairs.left, pairs.right))
        wanted = (np.array(pairs.scores) - low) / (high - low)
        return cls(encoder, *_learn(_products(left, right), wanted))

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A score for each text beside the query."""
        if not texts:
            return []
        asked, found = vectors_of(self.encoder, [query], "query"), vectors_of(self.encoder, list(texts), "document")
        logits = self.scale * (_products(asked, found) @ self.weights) + self.offset
        return [float(score) for score in expit(logits)]

    def save(self, file: Path) -> None:
        """Write the weights, and whose vectors they are for."""
        tensors = {
            "weights": torch.from_numpy(self.weights),
            "line": torch.tensor([self.scale, self.offset], dtype=torch.float64),
        }
        space = Space.of(self.encoder)
        with atomic_file(file) as temporary:
            save_file(tensors, temporary, {"fingerprint": space.fingerprint, "dim": str(space.dim)})

    @classmethod
    def load(cls, file: Path, encoder: Any) -> PairHead:
        """What `save` wrote; an encoder of another embedding space is refused."""
        try:
            with safe_open(file, framework="pt") as opened:  # type: ignore[no-untyped-call]
                said = opened.metadata() or {}
                weights, line = opened.get_tensor("weights").numpy(), opened.get_tensor("line").tolist()
        except (OSError, SafetensorError) as error:
            raise InputError(f"There is no pair head in {file} ({error}); make one with `d2v tune --pairs`.") from None
        space = Space.of(encoder)
        if (said.get("fingerprint"), said.get("dim")) != (space.fingerprint, str(space.dim)):
            raise InputError(f"The pair head in {file} is for vectors of another embedding space; make it again.")
        return cls(encoder, weights, line[0], line[1])


def _products(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    """[pair, dim] terms of the cosines."""
    a, b = (side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in (left, right))
    products: NDArray[np.float64] = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return products


def _learn(products: NDArray[np.float64], wanted: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """Weights, scale and offset with the least cross-entropy: the same for the same pairs, every time."""
    terms, goal = torch.from_numpy(products), torch.from_numpy(wanted)
    change = torch.zeros(terms.shape[1], dtype=torch.float64, requires_grad=True)
    line = torch.tensor([4.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([change, line], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits = line[0] * (terms @ (1 + change)) + line[1]
        value = binary_cross_entropy_with_logits(logits, goal) + _DRAWN_BACK / len(goal) * change.pow(2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[arg-type,no-untyped-call]
    scale, offset = line.tolist()
    return (1 + change).detach().numpy(), scale, offset
