"""Correlations and their intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.floating]


def cosine_pairs(left: FloatArray, right: FloatArray) -> FloatArray:
    """Cosine of each row of `left` with the same row of `right`; a zero vector is similar to nothing (0)."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return cast(FloatArray, np.einsum("nd,nd->n", a, b) / np.where(norms > 0, norms, 1.0))


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Rank correlation; 0 where either side is constant and no order exists."""
    return pearson(stats.rankdata(x), stats.rankdata(y))


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Linear correlation; 0 where either side is constant."""
    return float(_correlate_rows(np.asarray(x, np.float64)[None], np.asarray(y, np.float64)[None])[0])


def spearman_interval(
    x: FloatArray, y: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the rank correlation: pairs are drawn with replacement and ranked anew."""
    rng = np.random.default_rng(seed)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    values = []
    for _ in range(0, samples, 100):
        draw = rng.integers(0, len(x), (min(100, samples), len(x)))
        values.append(_correlate_rows(stats.rankdata(x[draw], axis=1), stats.rankdata(y[draw], axis=1)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(values), [tail, 1 - tail])
    return float(low), float(high)


def mean_interval(
    values: FloatArray, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of a mean: values are drawn with replacement."""
    rng = np.random.default_rng(seed)
    values = np.asarray(values, np.float64)
    means = [values[rng.integers(0, len(values), (100, len(values)))].mean(axis=1) for _ in range(0, samples, 100)]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def _correlate_rows(x: FloatArray, y: FloatArray) -> FloatArray:
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    safe = np.where(scale > 0, scale, 1.0)
    return cast(FloatArray, np.where(scale > 0, (x * y).sum(axis=1) / safe, 0.0))


METRICS: dict[str, Callable[[FloatArray, FloatArray], float]] = {"spearman": spearman, "pearson": pearson}
"""Correlations by name."""
