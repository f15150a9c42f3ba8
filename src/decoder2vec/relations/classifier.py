"""Classifiers of pairs, which say how two mentions are related: a network on both vectors, or a reranker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.relations.candidates import Floats, Indices
from decoder2vec.relations.mentions import NONE
from decoder2vec.reranker import Reranker

_HIDDEN = 256
_DROPOUT = 0.3
_EPOCHS, _BATCH, _RATE, _DECAY = 8, 256, 1e-3, 1e-2
_MIN_STEPS = 150
"""Few pairs are seen in more epochs, until there are as many steps."""
_PAIRS_AT_ONCE = 8192


TrainReranker = Callable[[Sequence[str], Sequence[str], Sequence[str]], Reranker]
"""First texts, second texts and labels -> a reranker that was trained to give such pairs their labels."""


class RerankerClassifier:
    """Probabilities of labels for pairs of mentions that a reranker reads together, the head first.

    Args:
        reranker: It has labels; one that lacks NONE never predicts it.
        directed: Whether (a, b) and (b, a) may have different labels; else both are read, and the mean counts.
    """

    def __init__(self, reranker: Reranker, directed: bool = True) -> None:
        self.reranker, self.directed = reranker, directed
        self.labels = (NONE, *(label for label in reranker.labels if label != NONE))

    @classmethod
    def fit(
        cls, train: TrainReranker, texts: Sequence[str], pairs: Indices, targets: Sequence[str], directed: bool
    ) -> RerankerClassifier:
        """Train on pairs of mentions, in both orders where direction does not matter."""
        heads, tails = ([texts[index] for index in side] for side in pairs.T)
        if directed:
            return cls(train(heads, tails, targets), directed)
        return cls(train([*heads, *tails], [*tails, *heads], [*targets, *targets]), directed)

    def __call__(self, texts: Sequence[str], pairs: Indices) -> NDArray[np.float32]:
        """[pairs, labels] probabilities, NONE first.

        Args:
            texts: The marked text of each mention.
            pairs: [n, 2] head and tail of each pair.
        """
        heads, tails = ([texts[index] for index in side] for side in pairs.T)
        probabilities = self.reranker.classify_pairs(heads, tails)
        if not self.directed:
            both = probabilities + self.reranker.classify_pairs(tails, heads)
            probabilities = np.asarray(both / 2, np.float32)
        columns = [self.reranker.labels.index(label) for label in self.labels if label in self.reranker.labels]
        missing = np.zeros((len(pairs), len(self.labels) - len(columns)), np.float32)
        return np.concatenate([missing, probabilities[:, columns]], axis=1)


class PairClassifier:
    """Probabilities of labels for pairs of vectors.

    Args:
        labels: The labels; NONE is added as the first.
        dim: Dimensions of a vector.
        directed: Whether (a, b) and (b, a) may have different labels.
    """

    def __init__(self, labels: Sequence[str], dim: int, directed: bool = True) -> None:
        self.labels = (NONE, *labels)
        self.dim, self.directed = dim, directed
        n_features = (4 if directed else 3) * dim
        self._net = nn.Sequential(
            nn.Dropout(_DROPOUT),
            nn.Linear(n_features, _HIDDEN),
            nn.GELU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(_HIDDEN, len(self.labels)),
        ).eval()

    def features(self, vectors: Tensor, pairs: Indices) -> Tensor:
        """[pairs, features]: both vectors in their order, their product and difference; symmetric if not directed."""
        head, tail = vectors[pairs[:, 0]], vectors[pairs[:, 1]]
        both = [head, tail] if self.directed else [head + tail]
        return torch.cat([*both, head * tail, (head - tail).abs()], dim=1)

    def fit(self, vectors: Floats, pairs: Indices, targets: Sequence[str], seed: int = 0) -> PairClassifier:
        """Train with cross-entropy, and return the classifier.

        Args:
            vectors: [mentions, dim] vectors.
            pairs: [n, 2] head and tail of each training pair.
            targets: [n] labels, NONE included.
            seed: Seed of weights, batches and dropout.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in self._net:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
            self._train(_scaled(vectors), pairs, torch.tensor([self.labels.index(label) for label in targets]))
        return self

    def _train(self, vectors: Tensor, pairs: Indices, targets: Tensor) -> None:
        optimiser = torch.optim.AdamW(self._net.parameters(), _RATE, weight_decay=_DECAY)
        steps_per_epoch = math.ceil(len(pairs) / _BATCH)
        n_epochs = max(_EPOCHS, math.ceil(_MIN_STEPS / steps_per_epoch))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=n_epochs * steps_per_epoch)
        self._net.train()
        for _ in range(n_epochs):
            for rows in torch.split(torch.randperm(len(pairs)), _BATCH):
                optimiser.zero_grad()
                logits = self._net(self.features(vectors, pairs[rows.numpy()]))
                functional.cross_entropy(logits, targets[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
        self._net.eval()

    @torch.inference_mode()
    def __call__(self, vectors: Floats, pairs: Indices) -> NDArray[np.float32]:
        """[pairs, labels] probabilities, NONE first."""
        scaled = _scaled(vectors)
        probabilities = [
            self._net(self.features(scaled, pairs[begin : begin + _PAIRS_AT_ONCE])).softmax(dim=1).numpy()
            for begin in range(0, len(pairs), _PAIRS_AT_ONCE)
        ]
        return np.concatenate(probabilities) if probabilities else np.empty((0, len(self.labels)), np.float32)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name."""
        return dict(self._net.state_dict())

    @classmethod
    def from_tensors(cls, labels: Sequence[str], dim: int, tensors: Mapping[str, Tensor]) -> PairClassifier:
        """The classifier whose weights `tensors` returned; their number says whether it is directed."""
        classifier = cls(labels, dim, directed=tensors["1.weight"].shape[1] == 4 * dim)
        classifier._net.load_state_dict(dict(tensors))
        return classifier


def _scaled(vectors: Floats) -> Tensor:
    """Vectors of the same length whose numbers are about 1: networks train best from there."""
    scale: float = vectors.shape[1] ** 0.5
    return functional.normalize(torch.from_numpy(vectors), dim=-1) * scale
