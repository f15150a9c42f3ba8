"""The end of a seed: cut and calibrate, then score dev, test and the pairs that any scorer ought to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.config import Reading
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.maths.metrics import METRICS, pairwise_cos_sim
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.data import TrainingData
from decoder2vec.training.examples import random_pairs, stop_pairs
from decoder2vec.training.result import Result


@dataclass(kw_only=True)
class SeedResult(Result):
    """A seed of FREEZE."""

    net: CodeNet
    table: LatentTable
    readings: tuple[Reading, ...]
    head: LayerwiseHead


def finish(result: SeedResult, recipe: Freeze, data: TrainingData, fitted_on: NDArray[np.intp]) -> None:
    """Cut on training texts, calibrate on the first dev file; then score dev, and test for the first time.

    Of a cut, the score without it is noted as well, since what it costs is part of the result.
    """
    first = data.dev[0]
    if recipe.dim:
        result.notes["before the cut"] = {
            "dev": _scores(result, data.dev),
            "test": _scores(result, data.test),
            "dim": result.head.dim,
        }
        result.head = result.head.reduce_dim(embed_rows(result.head, result.table, fitted_on), recipe.dim)
    low, high = data.scale_of(first)
    target = np.clip((np.asarray(first.scores) - low) / (high - low), 0, 1)
    top = None if recipe.head == "mlp" else 1.0
    raw = score_pairs(result, list(zip(first.left, first.right, strict=True)))
    result.head.calibration = Calibration.fit(raw, target, top=top)
    result.dev = _scores(result, data.dev)
    result.test = _scores(result, data.test)
    result.checks = _checks(result, first.texts())


def _checks(result: SeedResult, texts: Sequence[str]) -> dict[str, float]:
    kinds = {
        "equal texts": [(text, text) for text in texts[:200]],
        "full stop": stop_pairs(texts),
        "random pairs": random_pairs(texts),
    }
    return {name: round(float(calibrated(result, pairs).mean()), 4) for name, pairs in kinds.items() if pairs}


def _scores(result: SeedResult, files: Sequence[ScoredPairs]) -> dict[str, dict[str, float]]:
    found = {}
    for pairs in files:
        raw, truth = score_pairs(result, list(zip(pairs.left, pairs.right, strict=True))), np.asarray(pairs.scores)
        found[pairs.name] = {name: round(100 * metric(raw, truth), 2) for name, metric in METRICS.items()}
    return found


def embed_rows(head: LayerwiseHead, table: LatentTable, rows: NDArray[np.intp]) -> NDArray[np.float32]:
    """[row, dim] vectors of some rows of a table."""
    parts = []
    for begin in range(0, len(rows), 512):
        parts.append(head.encode_latents(table.batch(rows[begin : begin + 512])).cpu().numpy())
    return np.concatenate(parts)


def score_pairs(result: SeedResult, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Raw scores, as the encoder's own `similarity` gives them."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    place = {text: number for number, text in enumerate(texts)}
    vectors = embed_rows(result.head, result.table, result.table.rows(texts))
    left, right = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    if not result.head.has_pair_similarity:
        return np.asarray(pairwise_cos_sim(left, right).astype(np.float32), np.float64)
    return result.head.similarity_pairwise(torch.from_numpy(left), torch.from_numpy(right)).double().numpy()


def calibrated(result: SeedResult, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Scores between 0 and 1."""
    return result.head.calibration(torch.from_numpy(score_pairs(result, pairs))).double().numpy()
