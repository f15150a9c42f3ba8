"""Semantic textual similarity: how well do an encoder's similarities follow human scores?

The protocol of SimCSE and MTEB: cosine of the two embeddings, one correlation over all pairs of a file ("all"
setting), nothing trained on the scores. Spearman is the headline; Pearson stands beside it, never in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from decoder2vec.errors import InputError, MissingExtraError, unknown_name
from decoder2vec.evaluation.similarity import similarities
from decoder2vec.maths.metrics import pearson, spearman, spearman_interval
from decoder2vec.text.files import PAIR_COLUMNS, Pairs, read_pairs


class CanEncode(Protocol):
    """Anything that turns a list of texts into an array of vectors."""

    @property
    def encode(self) -> Callable[..., Any]:
        """A function of a list of texts that gives [n, dim] vectors."""


def evaluate_sts(encoder: CanEncode, pairs: Pairs, **encode_kwargs: Any) -> dict[str, Any]:
    """Spearman and Pearson (in points) of the encoder on the pairs, with a 95 % bootstrap interval."""
    started = time.perf_counter()
    texts = pairs.texts()
    vectors = np.asarray(encoder.encode(texts, **encode_kwargs))
    if not np.isfinite(vectors).all():
        raise InputError(
            f"The encoder gave vectors that are not finite on {pairs.name}; run `d2v doctor` on its model."
        )
    place = {text: row for row, text in enumerate(texts)}
    left = vectors[[place[text] for text in pairs.left]]
    right = vectors[[place[text] for text in pairs.right]]
    result = score_sts(similarities(encoder, left, right), pairs.scores)
    seconds = time.perf_counter() - started
    return {"task": pairs.name, "pairs": len(pairs), "texts": len(texts), **result, "seconds": round(seconds, 2)}


def score_sts(predicted: Any, scores: Sequence[float]) -> dict[str, Any]:
    """The two correlations and the interval of the first, in points."""
    truth = np.asarray(scores, np.float64)
    low, high = spearman_interval(predicted, truth)
    return {
        "spearman": round(100 * spearman(predicted, truth), 2),
        "pearson": round(100 * pearson(predicted, truth), 2),
        "spearman_95": [round(100 * low, 2), round(100 * high, 2)],
    }


def load_pairs(source: str | Path, columns: Sequence[str] = PAIR_COLUMNS, **options: Any) -> Pairs:
    """Pairs from a file, or STS-B from the data hub by the name stsb:train, stsb:dev or stsb:test."""
    name, _, split = str(source).partition(":")
    if name == "stsb" and split and not Path(source).exists():
        return sts_from_hub(split)
    return read_pairs(source, columns, **options)


def sts_from_hub(split: str) -> Pairs:
    """STS-B from the data hub, for people with a network: split "train", "dev" or "test"."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError("datasets", "hub") from None
    names = {"train": "train", "dev": "validation", "test": "test"}
    if split not in names:
        raise unknown_name("split", split, names)
    rows = load_dataset("sentence-transformers/stsb", split=names[split])
    return Pairs(f"stsb-{split}", list(rows["sentence1"]), list(rows["sentence2"]), list(rows["score"]))
