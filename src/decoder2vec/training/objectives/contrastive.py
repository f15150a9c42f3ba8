"""Contrastive learning: an anchor must find its positive among the texts of its batch (InfoNCE)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.backbone.batch import move_to_device
from decoder2vec.errors import InputError
from decoder2vec.maths.losses import info_nce, matryoshka_loss
from decoder2vec.training.context import InputSpec, LatentContext, Reads, TrainingContext, correlation
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Objective, ObjectiveConfig


@dataclass(frozen=True)
class ContrastiveConfig(ObjectiveConfig):
    """InfoNCE with in-batch negatives and hard negatives."""

    name: str = "info_nce"
    temperature: float = 0.05
    symmetric: bool = False
    """Also let each positive find its anchor."""
    dims: tuple[int, ...] = ()
    """Matryoshka: prefixes of these lengths are trained, and nothing else: the full width must be among them."""

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def info_nce(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, *, masked: Tensor | None = None
    ) -> Tensor:
        """InfoNCE with these settings."""
        loss = matryoshka_loss(info_nce, self.dims) if self.dims else info_nce
        return loss(
            anchors, positives, negatives, temperature=self.temperature, symmetric=self.symmetric, masked=masked
        )


class ContrastiveObjective(Objective[ContrastiveConfig, TrainingContext]):
    """Pairs, triplets, labelled texts or records, by InfoNCE; known positives in the batch are masked."""

    names = ("info_nce",)
    config_class = ContrastiveConfig
    needs = "contrastive"
    stage = "triplets"

    def __init__(self, config: ContrastiveConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if data.contrastive is None:
            raise InputError(
                f"{config.name} learns from texts that belong together; give triplets or pairs of such texts."
            )
        self.examples = data.contrastive

    @classmethod
    def count_examples(cls, data: TrainingData) -> int | None:
        """The number of pairs, triplets or labelled texts."""
        return len(data.contrastive) if data.contrastive else None

    @property
    def texts(self) -> list[str]:
        """Texts of all examples."""
        return self.examples.texts

    def __len__(self) -> int:
        return len(self.examples)

    def loss(self, context: TrainingContext) -> Loss:
        """InfoNCE; a text that occurs more than once in a batch is encoded once."""
        examples = self.examples
        text_rows = context.rows(examples.texts)

        def loss(rows: Rows) -> Tensor:
            masked = move_to_device(torch.from_numpy(examples.known_positives(rows)), context.device)
            vectors = encode_examples(context, text_rows, examples, rows)
            return self.config.info_nce(*vectors, masked=masked)

        return loss

    def batches(self, order: Rows, size: int) -> Iterator[Rows]:
        """Batches of one source in which no text occurs twice.

        A batch with fewer than size // 8 examples is dropped if its source has larger ones. Examples of sources that
        have only batches of one share batches, since a batch of one has no in-batch negatives.

        Batches are sorted by the median position of their examples in the shuffled order, so that sources alternate
        in proportion to their sizes.
        """
        sources = self.examples.sources[order]
        present = np.unique(sources)
        batches: list[Rows] = []
        single: list[Rows] = []
        for source in present:
            of_source = list(self.examples.batches(order[sources == source], size))
            contrasting = [rows for rows in of_source if len(rows) > 1]
            batches += [rows for rows in contrasting if len(rows) >= size // 8] or contrasting
            single += of_source if not contrasting else []
        if single:
            shared = list(self.examples.batches(np.concatenate(single), size))
            batches += [rows for rows in shared if len(rows) > 1]
            batches = batches or shared
        if len(present) > 1:
            position = np.empty(len(self), np.intp)
            position[order] = np.arange(len(order))
            batches.sort(key=lambda rows: float(np.median(position[rows])))
        return iter(batches)

    def resume_key(self) -> list[Any]:
        """Indices of all examples, groups and sources."""
        return self.examples.indices()


def encode_examples(
    context: TrainingContext, text_rows: Rows, examples: ContrastiveExamples, rows: Rows
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Vectors of the anchors, positives and [examples, negatives, dim] negatives of a batch, each text encoded once."""
    indices = np.concatenate([examples.anchors[rows], examples.candidates(rows)])
    unique, inverse = np.unique(text_rows[indices.clip(min=0)], return_inverse=True)
    vectors = context.encode(unique.tolist())[move_to_device(torch.from_numpy(inverse), context.device)]
    anchors, positives, hard = vectors.tensor_split([len(rows), 2 * len(rows)])
    negatives = hard.view(-1, len(rows), vectors.shape[1]).transpose(0, 1) if len(hard) else None
    return anchors, positives, negatives


@dataclass(frozen=True)
class LatentTripletsConfig(ObjectiveConfig):
    """Settings of `LatentTripletsObjective`."""

    name: str = "latent_triplets"
    temperature: float = 0.05
    choose_by: str = "spearman"
    """The dev correlation of the vectors' cosines by which states are selected."""

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


class LatentTripletsObjective(Objective[LatentTripletsConfig, LatentContext]):
    """Triplets on cached latents, as FREEZE's pre-training: every other positive and negative is a negative."""

    names = ("latent_triplets",)
    config_class = LatentTripletsConfig
    needs = "triplets"
    stage = "triplets"
    reads = (Reads.LATENTS,)
    unreadable = "learns from cached latents; use the recipe freeze"

    def __init__(self, config: LatentTripletsConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if not data.triplets:
            raise InputError("Contrastive pre-training learns from triplets; give some, or set pretrain to none.")

    @property
    def texts(self) -> list[str]:
        """Texts of all triplets."""
        return list(dict.fromkeys(text for row in self.data.triplets for text in row))

    def __len__(self) -> int:
        return len(self.data.triplets)

    def loss(self, context: LatentContext) -> Loss:
        """InfoNCE with one hard negative per anchor."""
        text_rows = np.stack([context.rows(column) for column in zip(*self.data.triplets, strict=True)])

        def loss(rows: Rows) -> Tensor:
            anchors, positives, negatives = context.encode(text_rows[:, rows].ravel()).chunk(3)
            return info_nce(anchors, positives, negatives[:, None], temperature=self.config.temperature)

        return loss

    def dev_metric(self, context: LatentContext) -> Callable[[], float]:
        """Correlation of the vectors' cosines, whichever pair head is trained later."""
        dev = [context.pair_rows(pairs) for pairs in self.data.dev]
        net, metric = context.net, self.config.choose_by

        def cosine(left: Tensor, right: Tensor) -> Tensor:
            products: Tensor = (net(left) * net(right)).sum(dim=-1)
            return products

        def score() -> float:
            net.eval()
            return float(
                np.mean([correlation(metric, context.map_pairs(pairs, cosine), pairs.scores) for pairs in dev])
            )

        return score

    def resume_key(self) -> list[Any]:
        """The triplets."""
        return [self.data.triplets]


def check_temperature(temperature: float) -> None:
    """Raise unless a temperature is positive and finite."""
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a number above 0, not {temperature}.")
