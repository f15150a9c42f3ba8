"""Rerankers, which rescore the best documents of a search together with the query: slower and more accurate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch.nn.functional import binary_cross_entropy_with_logits

from decoder2vec.encoder_folder import saved_reranker_folder
from decoder2vec.errors import DataFileError, InputError, StorageError
from decoder2vec.maths.similarity import normalise
from decoder2vec.reranker import TRAINING_FREE, Reranker
from decoder2vec.search.store import Embeddings, EmbeddingSpace, encode_texts, resolve_encoder
from decoder2vec.tensor_files import load_tensors, save_tensors
from decoder2vec.text.files import ScoredPairs

_MAX_STEPS = 200
_REGULARISATION = 1.0
"""Strength of the L2 penalty that pulls weights towards 1, in pairs."""


class SupportsRerank(Protocol):
    """Anything that scores texts for a query."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score for each text; higher is better."""


class PairReranker:
    """Scores a query and a text with `Encoder.score`, which compares them layer by layer if the encoder is trained."""

    def __init__(self, encoder: Any) -> None:
        if not callable(getattr(encoder, "score", None)):
            raise InputError("To rerank, an encoder must have `score`; pass an encoder of this package.")
        self.encoder = encoder

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score between 0 and 1 for each text."""
        if not texts:
            return []
        return [float(score) for score in np.asarray(self.encoder.score([query] * len(texts), list(texts)))]


def open_reranker(name: str | Path, device: str | None = None, dtype: str | None = None) -> SupportsRerank:
    """Return the reranker of a name.

    Args:
        name: A saved reranker: its folder, or `smollm2-135m-reranker`, which ships with this package;
            `likelihood:MODEL` or `yes_no:MODEL`, which need no training; or an encoder, which scores pairs by its
            vectors.
        device: cuda, mps or cpu; by default the best one available.
        dtype: By default the one that suits the device.
    """
    if saved_reranker_folder(name) or str(name).startswith(tuple(f"{method}:" for method in TRAINING_FREE)):
        reranker = Reranker.from_pretrained(name, device=device, dtype=dtype)
        reranker.check_ranks()
        return reranker
    return PairReranker(resolve_encoder(name, device=device, dtype=dtype))


class WeightedCosineReranker:
    """Logistic regression on a cosine with one learned weight per dimension; works with any encoder."""

    def __init__(self, encoder: Any, weights: NDArray[np.float64], scale: float, offset: float) -> None:
        self.encoder, self.weights, self.scale, self.offset = encoder, weights, scale, offset

    @classmethod
    def fit(cls, encoder: Any, pairs: ScoredPairs) -> WeightedCosineReranker:
        """Learn from scored pairs; their lowest score is the target 0, their highest the target 1."""
        low, high = min(pairs.scores), max(pairs.scores)
        if low == high:
            raise DataFileError(f"All pairs of {pairs.name} have the score {low}; give pairs with different scores.")
        row_of = {text: row for row, text in enumerate(pairs.texts())}
        vectors = encode_texts(encoder, list(row_of), "document")
        left, right = (vectors[[row_of[text] for text in side]] for side in (pairs.left, pairs.right))
        targets = (np.array(pairs.scores) - low) / (high - low)
        return cls(encoder, *_fit_weights(_cosine_terms(left, right), targets))

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score between 0 and 1 for each text."""
        if not texts:
            return []
        query_vector = encode_texts(self.encoder, [query], "query")
        text_vectors = encode_texts(self.encoder, list(texts), "document")
        logits = self.scale * (_cosine_terms(query_vector, text_vectors) @ self.weights) + self.offset
        return [float(score) for score in expit(logits)]

    def save(self, file: Path) -> None:
        """Write the weights with the fingerprint of the embedding space they are for."""
        tensors = {
            "weights": torch.from_numpy(self.weights),
            "line": torch.tensor([self.scale, self.offset], dtype=torch.float64),
        }
        space = EmbeddingSpace.of(self.encoder)
        save_tensors(tensors, file, {"fingerprint": space.fingerprint, "dim": str(space.dim)})

    @classmethod
    def load(cls, file: Path, encoder: Any) -> WeightedCosineReranker:
        """Return the saved reranker.

        Raises:
            InputError: There is no such file, or the encoder embeds into another space.
            StorageError: The file is damaged.
        """
        if not file.exists():
            raise InputError(f"There is no reranker in {file}; learn one with `d2v index --tune --pairs`.")
        try:
            tensors, metadata = load_tensors(file)
            weights, line = tensors["weights"].numpy(), tensors["line"].tolist()
        except (StorageError, KeyError) as error:
            raise StorageError(
                f"The reranker in {file} is damaged ({error}); learn it again with `d2v index --tune --pairs`."
            ) from None
        space = EmbeddingSpace.of(encoder)
        if (metadata.get("fingerprint"), metadata.get("dim")) != (space.fingerprint, str(space.dim)):
            raise InputError(f"The reranker in {file} is for another embedding space; learn it again.")
        return cls(encoder, weights, line[0], line[1])


def _cosine_terms(left: Embeddings, right: Embeddings) -> NDArray[np.float64]:
    """[pairs, dim] products whose sum over the dimensions is the cosine."""
    a, b = (normalise(rows) for rows in (left, right))
    terms: NDArray[np.float64] = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return terms


def _fit_weights(
    cosine_terms: NDArray[np.float64], targets: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, float]:
    """Return the weights, scale and offset of least cross-entropy; deterministic."""
    terms, goals = torch.from_numpy(cosine_terms), torch.from_numpy(targets)
    delta = torch.zeros(terms.shape[1], dtype=torch.float64, requires_grad=True)
    line = torch.tensor([4.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([delta, line], max_iter=_MAX_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits = line[0] * (terms @ (1 + delta)) + line[1]
        value = binary_cross_entropy_with_logits(logits, goals) + _REGULARISATION / len(goals) * delta.pow(2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[arg-type,no-untyped-call]
    scale, offset = line.tolist()
    return (1 + delta).detach().numpy(), scale, offset
