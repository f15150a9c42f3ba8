"""Why two texts are similar: what each layer of a layerwise encoder says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decoder2vec.errors import UnsupportedError
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.spec import Reading


@dataclass(frozen=True)
class Explanation:
    """One row per reading, and what they make together."""

    score: float
    """Between 0 and 1."""
    similarity: float
    """Before calibration."""
    readings: tuple[Reading, ...]
    cosines: tuple[float, ...]
    contributions: tuple[float, ...]
    """Under the head "sum" they add up to the similarity, under "gated" to the similarity - 1; under "each" they are
    the layers' own scores; under "mlp": what the similarity would lose if the layer only repeated the others."""


def explain_pair(head: Any, readings: Sequence[Reading], vectors: Any) -> Explanation:
    """The explanation of two embeddings of a layerwise encoder."""
    if not isinstance(head, LayerwiseHead) or head.cut is not None or head.net.spec.mixing != "none":
        raise UnsupportedError(
            "Only an encoder with a block for each layer can explain a pair; train one: `d2v train`."
        )
    left, right = torch.from_numpy(vectors[:1]), torch.from_numpy(vectors[1:])
    cosines, contributions = head.contributions(left, right)
    similarity = head.similarity_pairwise(left, right)
    return Explanation(
        float(head.calibration(similarity)[0]),
        float(similarity[0]),
        tuple(readings),
        tuple(cosines[0].tolist()),
        tuple(contributions[0].tolist()),
    )
