"""The retriever: vectors of mentions as heads and as tails, whose cosine says how likely two are related."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.relations.candidates import Floats, Indices

_EPOCHS, _BATCH, _RATE = 100, 512, 1e-3
"""Passes over the related pairs, and the most of them in a step."""
_DECAY = 1e-2
_SCALE, _OFFSET = 10.0, -5.0
"""Of cosines before training: logits of a probability. A raw dot product would saturate the sigmoid."""


@dataclass(frozen=True)
class Retriever:
    """Untuned, the vectors of the encoder; tuned, two linear maps of them, one for heads and one for tails."""

    head_map: Tensor | None = None
    """[dim, dim]"""
    tail_map: Tensor | None = None
    """[dim, dim]"""

    def __call__(self, vectors: Floats) -> tuple[Floats, Floats]:
        """[mentions, dim] vectors as heads and as tails, of length 1."""
        unit = functional.normalize(torch.from_numpy(vectors), dim=-1)
        heads, tails = (
            unit if weights is None else functional.normalize(unit @ weights, dim=-1)
            for weights in (self.head_map, self.tail_map)
        )
        return heads.numpy(), tails.numpy()

    @classmethod
    def fit(
        cls, vectors: Floats, positives: Indices, negatives: Indices, *, directed: bool = True, seed: int = 0
    ) -> Retriever:
        """Tune with binary cross-entropy on the cosine of a pair, with a learned scale.

        A batch has as many related pairs as others, however rare they are. Both maps start as the identity and are kept
        near it, so that the vectors of the encoder are where few relations say nothing else.

        Args:
            vectors: [mentions, dim] vectors of the encoder.
            positives: [n, 2] related pairs.
            negatives: [m, 2] near pairs that are not related.
            directed: Whether heads and tails have maps of their own.
            seed: Seed of the batches.
        """
        generator = torch.Generator().manual_seed(seed)
        unit = functional.normalize(torch.from_numpy(vectors), dim=-1)
        identity = torch.eye(unit.shape[1])
        head_map = nn.Parameter(identity.clone())
        maps = (head_map, nn.Parameter(identity.clone()) if directed else head_map)
        scale, offset = nn.Parameter(torch.tensor(_SCALE)), nn.Parameter(torch.tensor(_OFFSET))
        optimiser = torch.optim.Adam([*dict.fromkeys(maps), scale, offset], _RATE)
        size = min(_BATCH, len(positives))
        for _ in range(_EPOCHS * -(-len(positives) // size)):
            loss = _DECAY * torch.stack([((each - identity) ** 2).sum() for each in maps]).sum()
            for pairs, target in ((positives, 1.0), (negatives, 0.0)):
                if not len(pairs):
                    continue
                batch = pairs[torch.randint(len(pairs), (size,), generator=generator).numpy()]
                head, tail = (unit[batch[:, side]] @ maps[side] for side in (0, 1))
                logits = scale * functional.cosine_similarity(head, tail) + offset
                loss = loss + functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return cls(*(each.detach() for each in maps))
