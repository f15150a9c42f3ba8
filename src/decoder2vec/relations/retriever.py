"""The retriever: vectors of mentions as heads and as tails, whose cosine says how likely two are related."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.relations.candidates import Floats, Indices

_RANK = 64
_EPOCHS, _MIN_STEPS, _BATCH, _RATE, _DECAY = 20, 200, 128, 2e-3, 1e-2
"""Passes over the related pairs, steps if these are few, and the most pairs of each class in a step."""
_SCALE, _OFFSET = 10.0, -5.0
"""Of cosines before training, as logits. A raw dot product would saturate the sigmoid."""


@dataclass(frozen=True)
class Retriever:
    """Untuned, the vectors of the encoder; tuned, these plus a low-rank update, one for heads and one for tails."""

    head_map: Tensor | None = None
    """[2, dim, rank] factors of the update."""
    tail_map: Tensor | None = None
    """[2, dim, rank] factors of the update."""

    def __call__(self, vectors: Floats) -> tuple[Floats, Floats]:
        """[mentions, dim] vectors as heads and as tails, of length 1."""
        unit = functional.normalize(torch.from_numpy(vectors), dim=-1)
        heads, tails = (
            unit if factors is None else functional.normalize(_update(unit, factors), dim=-1)
            for factors in (self.head_map, self.tail_map)
        )
        return heads.numpy(), tails.numpy()

    @classmethod
    def fit(
        cls, vectors: Floats, positives: Indices, negatives: Indices, *, directed: bool = True, seed: int = 0
    ) -> Retriever:
        """Tune with binary cross-entropy on the cosine of a pair, with a learned scale.

        A batch has as many related pairs as others, however rare they are. The update is zero at first.

        Args:
            vectors: [mentions, dim] vectors of the encoder.
            positives: [n, 2] related pairs.
            negatives: [m, 2] near pairs that are not related.
            directed: Whether heads and tails have updates of their own.
            seed: Seed of the batches.
        """
        generator = torch.Generator().manual_seed(seed)
        unit = functional.normalize(torch.from_numpy(vectors), dim=-1)
        dim = unit.shape[1]

        def zero_update() -> Tensor:
            factors = torch.zeros(2, dim, min(_RANK, dim))
            factors[0].normal_(std=dim**-0.5, generator=generator)
            return nn.Parameter(factors)

        head_map = zero_update()
        maps = (head_map, zero_update() if directed else head_map)
        scale, offset = nn.Parameter(torch.tensor(_SCALE)), nn.Parameter(torch.tensor(_OFFSET))
        groups: list[dict[str, Any]] = [
            {"params": list(dict.fromkeys(maps))},
            {"params": [scale, offset], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, _RATE, weight_decay=_DECAY)
        size = min(_BATCH, len(positives))
        for _ in range(max(_MIN_STEPS, _EPOCHS * math.ceil(len(positives) / size))):
            loss = torch.zeros(())
            for pairs, target in ((positives, 1.0), (negatives, 0.0)):
                if not len(pairs):
                    continue
                batch = pairs[torch.randint(len(pairs), (size,), generator=generator).numpy()]
                head, tail = (_update(unit[batch[:, side]], maps[side]) for side in (0, 1))
                logits = scale * functional.cosine_similarity(head, tail) + offset
                loss = loss + functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return cls(*(each.detach() for each in maps))


def _update(vectors: Tensor, factors: Tensor) -> Tensor:
    return vectors + vectors @ factors[0] @ factors[1].T
