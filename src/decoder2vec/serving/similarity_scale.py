"""What a similarity means with one encoder: what it gives to unrelated sentences and to paraphrases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.maths.similarity import pairwise_similarity
from decoder2vec.text.files import read_rows

_N_PAIRS = 8
"""Pairs of each kind; they are encoded once for each model."""
_MAX_UNRELATED, _MIN_PARAPHRASE = 0.5, 4.5
"""Scores of the pairs of the demo, from 0 to 5, of which the reference pairs are taken."""


def pair_similarities(encoder: Any, left: Sequence[str], right: Sequence[str]) -> list[float]:
    """Return the similarity of each pair of texts under an encoder."""
    vectors = encoder.encode([*left, *right])
    pairwise = getattr(encoder, "similarity_pairwise", partial(pairwise_similarity, "cosine"))
    return [float(value) for value in pairwise(vectors[: len(left)], vectors[len(left) :])]


def measure_scale(encoder: Any) -> dict[str, dict[str, float]]:
    """Return low, median and high similarity (10, 50 and 90 %) of unrelated sentences and of paraphrases."""
    kinds = {"unrelated": lambda score: score <= _MAX_UNRELATED, "paraphrases": lambda score: score >= _MIN_PARAPHRASE}
    pairs = {kind: _reference_pairs(matches) for kind, matches in kinds.items()}
    left, right = ([pair[side] for chosen in pairs.values() for pair in chosen] for side in (0, 1))
    similarities = np.reshape(pair_similarities(encoder, left, right), (len(kinds), -1))
    return {
        kind: dict(zip(("low", "median", "high"), np.quantile(values, (0.1, 0.5, 0.9)).tolist(), strict=True))
        for kind, values in zip(kinds, similarities, strict=True)
    }


def _reference_pairs(matches: Callable[[float], bool]) -> list[tuple[str, str]]:
    """Return the shortest pairs of the demo whose score matches."""
    pairs = [(a, b) for score, a, b in _demo_pairs() if matches(score)]
    return sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))[:_N_PAIRS]


@cache
def _demo_pairs() -> list[tuple[float, str, str]]:
    file = Path(str(resources.files("decoder2vec") / "demo" / "pairs.tsv"))
    return [(float(row["score"]), row["sentence1"], row["sentence2"]) for _, row in read_rows(file)]
