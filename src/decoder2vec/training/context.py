"""What objectives see of a recipe: texts by row, their vectors with gradients, and the module that is trained.

A recipe attaches itself to a model and returns a context: `TokenContext` where the model runs on token ids through an
adapter, `LatentContext` where small networks run on cached latents of a frozen model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.block_modes import CompiledBlocks, computing_in, gradient_checkpointing
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import DivergedError
from decoder2vec.heads.codes import CodeNet
from decoder2vec.maths.metrics import METRICS, pairwise_cos_sim
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.tokens import Prompt, Tokeniser
from decoder2vec.training.batch_encoder import BatchEncoder, choose_batch_encoder
from decoder2vec.training.loop import Rows

_TEXTS_PER_PASS = 4096
_PAIRS_PER_PASS = 512


class Reads(Enum):
    """What a recipe must read in order to learn, from the cheapest to the most expensive."""

    LATENTS = "cached vectors: the model does not run at all"
    PREFIX_KV = "cached keys and values of the texts: only a prompt behind them runs"
    TOKENS = "every token, forward and backward"
    PAIRS = "every token of a query together with a document, forward and backward"


@dataclass(frozen=True)
class InputSpec:
    """How a recipe reads texts, as far as an objective must know before it sees any."""

    reads: Reads
    template: str = "plain"
    layer: int = -1
    max_length: int = DEFAULT_MAX_LENGTH
    attention: str = "causal"
    keeps_positions: bool = True
    """Whether the states of a text are at the positions of its tokens; with a soft prompt they are not."""


class TrainingContext(ABC):
    """A model as a recipe trains it."""

    module: nn.Module
    """What is trained: its parameters with `requires_grad`."""
    device: torch.device

    @property
    def is_sharded(self) -> bool:
        """Whether all processes must run the model at once, since each holds a part of it (FSDP)."""
        return False

    @abstractmethod
    def rows(self, texts: Sequence[str]) -> Rows:
        """Row of each text."""

    @abstractmethod
    def encode(self, rows: Sequence[int]) -> Tensor:
        """[texts, dim] vectors, with gradients to `module`."""

    @abstractmethod
    def dev_score(self, files: Sequence[ScoredPairs], metric: str) -> float:
        """Mean correlation of similarities with human scores over files, in points.

        NaN or DivergedError where they are not finite: a correlation of 0 may look like an improvement.
        """

    def forward_context(self) -> AbstractContextManager[Any]:
        """Active whenever the model runs, in training steps and in evaluations."""
        return nullcontext()

    def block_modes(self) -> AbstractContextManager[Any]:
        """Active in training steps only."""
        return nullcontext()


@dataclass
class TokenContext(TrainingContext):
    """A backbone with an adapter (or a trained copy of the model), and the tokenised texts."""

    backbone: Backbone
    """With the adapter attached."""
    module: nn.Module
    batch_encoder: BatchEncoder
    prompts: list[Prompt]
    index: dict[str, int]
    """Row of each text, which is its position in `prompts`."""
    tokenise: Tokeniser
    """As the prompts were made."""
    reading: Reading
    """The vector that is trained."""
    compute_dtype: torch.dtype
    """Weights trained in float32 compute in this dtype, that of the original model."""
    extra_tokens: int = 0
    """Positions the adapter adds to each text."""
    checkpoint_blocks: bool = False
    compile_blocks: bool = False

    def __post_init__(self) -> None:
        self.device = self.backbone.device
        self._compiled = CompiledBlocks(self.backbone) if self.compile_blocks else None

    def rows(self, texts: Sequence[str]) -> Rows:
        """Row of each text."""
        return np.array([self.index[text] for text in texts], np.intp)

    def prompts_of(self, texts: Sequence[str]) -> list[Prompt]:
        """The tokenised texts."""
        return [self.prompts[self.index[text]] for text in texts]

    def encode(self, rows: Sequence[int]) -> Tensor:
        """[texts, dim] vectors, with gradients to `module`."""
        return self.batch_encoder(rows)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """[texts, dim] vectors of texts that have no row, such as crops drawn for one step; every token runs."""
        prompts = self.tokenise(texts).prompts
        encoder = choose_batch_encoder(
            self.backbone,
            prompts,
            self.reading,
            extra_tokens=self.extra_tokens,
            budget=self.batch_encoder.budget,
            dtype=self.compute_dtype,
        )
        return encoder(range(len(prompts)))

    def dev_score(self, files: Sequence[ScoredPairs], metric: str) -> float:
        """Mean correlation of cosines with human scores over files, in points; NaN if vectors are not finite."""
        return float(np.mean([self._correlation(pairs, metric) for pairs in files]))

    def _correlation(self, pairs: ScoredPairs, metric: str) -> float:
        texts = pairs.texts()
        rows = self.rows(texts).tolist()
        parts = [self.encode(rows[start : start + _TEXTS_PER_PASS]) for start in range(0, len(rows), _TEXTS_PER_PASS)]
        vectors = torch.cat(parts).float().cpu()
        if not torch.isfinite(vectors).all():
            return math.nan  # the correlation would be 0, which may look like an improvement
        by_text = dict(zip(texts, vectors.numpy(), strict=True))
        left, right = (np.stack([by_text[text] for text in side]) for side in (pairs.left, pairs.right))
        return correlation(metric, pairwise_cos_sim(left, right), np.asarray(pairs.scores))

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the weights."""
        return self.batch_encoder.is_sharded

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """The adapter is enabled, and weights trained in float32 compute in the model's original dtype."""
        if self.backbone.dtype == self.compute_dtype or self.is_sharded:  # FSDP casts the weights that it gathers
            with self.backbone.adapter_enabled():
                yield
            return
        autocast = torch.autocast(self.device.type, self.compute_dtype)  # for what is computed outside the model
        with computing_in(self.backbone.model, self.compute_dtype), self.backbone.adapter_enabled(), autocast:
            yield

    @contextmanager
    def block_modes(self) -> Iterator[None]:
        """Blocks run compiled or with activation checkpointing, as the recipe asks."""
        compiled = self._compiled.enabled() if self._compiled else nullcontext()
        checkpointed = gradient_checkpointing(self.backbone) if self.checkpoint_blocks else nullcontext()
        with compiled, checkpointed:
            yield


@dataclass
class PairContext(TokenContext):
    """A backbone with a linear score, or one for each label, and tokenised pairs of a query and a document."""

    head: Tensor = field(kw_only=True)
    """[1, dim] weights of the score, or [labels, dim]."""
    pairs: dict[tuple[str, str], int] = field(kw_only=True)
    """Row of each pair (query, document), which is its position in `prompts`."""

    def pair_rows(self, queries: Sequence[str], documents: Sequence[str]) -> Rows:
        """Row of each pair."""
        return np.array([self.pairs[pair] for pair in zip(queries, documents, strict=True)], np.intp)

    def score(self, rows: Sequence[int]) -> Tensor:
        """[pairs] scores, with gradients to `module`; in float32, whatever the model computes in."""
        return (self.encode(rows).float() * self.head).sum(dim=1)

    def logits(self, rows: Sequence[int]) -> Tensor:
        """[pairs, labels] scores, with gradients to `module`; in float32, whatever the model computes in."""
        return (self.encode(rows).float()[:, None] * self.head).sum(dim=2)

    def predict(self, pairs: ScoredPairs) -> NDArray[np.float64]:
        """[pairs] scores without gradients; raises if they are not finite."""
        rows = self.pair_rows(pairs.left, pairs.right).tolist()
        parts = [self.score(rows[start : start + _TEXTS_PER_PASS]) for start in range(0, len(rows), _TEXTS_PER_PASS)]
        scores = torch.cat(parts).cpu().double().numpy()
        if not np.isfinite(scores).all():
            raise DivergedError("The scores are no longer finite; try a lower learning rate.")
        return np.asarray(scores)

    def dev_score(self, files: Sequence[ScoredPairs], metric: str) -> float:
        """Mean correlation of the scores with those of the files, in points."""
        return float(np.mean([correlation(metric, self.predict(pairs), np.asarray(pairs.scores)) for pairs in files]))


@dataclass(frozen=True)
class PairRows:
    """Scored pairs as rows of a latent table."""

    left: Rows
    right: Rows
    scores: NDArray[np.float64]


class LatentContext(TrainingContext):
    """A code network on the cached latents of a frozen model."""

    def __init__(self, net: CodeNet, table: LatentTable) -> None:
        self.net, self.table = net, table
        self.module: nn.Module = net
        self.device = table.device

    def rows(self, texts: Sequence[str]) -> Rows:
        """Row of each text."""
        return self.table.rows(texts)

    def pair_rows(self, pairs: ScoredPairs) -> PairRows:
        """The rows of scored pairs."""
        return PairRows(self.rows(pairs.left), self.rows(pairs.right), np.asarray(pairs.scores, np.float64))

    def encode(self, rows: Sequence[int] | Rows) -> Tensor:
        """[texts, dim] vectors, with gradients to the network."""
        vectors: Tensor = self.net(self.table.batch(rows))
        return vectors

    def score(self, left: Rows, right: Rows) -> Tensor:
        """[pairs] scores of the pair head, with gradients; [pairs, blocks] with the head "each"."""
        latents = self.table.batch(np.concatenate([left, right]))
        return self.net.score(latents[:, : len(left)], latents[:, len(left) :])

    def dev_score(self, files: Sequence[ScoredPairs], metric: str) -> float:
        """Mean correlation of the network's scores with human scores; with the head "each", that of the best layer.

        Raises:
            DivergedError: Scores are not finite.

        """
        return float(self.dev_scores([self.pair_rows(pairs) for pairs in files], metric).max())

    def dev_scores(self, files: Sequence[PairRows], metric: str) -> NDArray[np.float64]:
        """Mean correlation over files: one value, or one per layer with the head "each"."""
        by_file = []
        for pairs in files:
            columns = np.atleast_2d(self.predict(pairs).T)
            by_file.append([correlation(metric, column, pairs.scores) for column in columns])
        return np.asarray(np.mean(by_file, axis=0))

    def predict(self, pairs: PairRows) -> NDArray[np.float64]:
        """[pairs] scores of the network in evaluation mode; [pairs, blocks] with the head "each"."""
        self.net.eval()
        return self.map_pairs(pairs, self.net.score)

    @torch.no_grad()
    def map_pairs(self, pairs: PairRows, measure: Callable[[Tensor, Tensor], Tensor]) -> NDArray[np.float64]:
        """[pairs, ...] results of `measure` on the latents of both sides; raises if they are not finite."""
        parts = []
        for start in range(0, len(pairs.left), _PAIRS_PER_PASS):
            batch = slice(start, start + _PAIRS_PER_PASS)
            parts.append(measure(self.table.batch(pairs.left[batch]), self.table.batch(pairs.right[batch])))
        values = torch.cat(parts)
        if not torch.isfinite(values).all():  # their correlation would be 0, which may look like an improvement
            raise DivergedError("The scores are no longer finite; try a lower learning rate.")
        return values.cpu().double().numpy()


def correlation(metric: str, predicted: NDArray[Any], scores: NDArray[np.float64]) -> float:
    """Correlation by one of `METRICS`, in points."""
    return 100 * METRICS[metric](predicted, scores)
