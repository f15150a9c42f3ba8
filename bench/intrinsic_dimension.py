"""Seconds for the intrinsic dimension of 30 layers of 5,000 vectors, against scikit-dimension.

TwoNN alone, and everything that `d2v analyze id` computes.
Run: python bench/intrinsic_dimension.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from decoder2vec.analysis.intrinsic_dimension import estimate_dimension
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours
from measure import report

LAYERS, POINTS, DIM = 30, 5000, 576
LATENT_DIM = 40
TIMED_LAYERS = 3
"""Of the slow methods only so many layers are measured."""


def random_layer(seed: int) -> np.ndarray:
    """Return [points, dim] vectors like a decoder's: 40 uneven latent dimensions, a large mean, one huge dimension."""
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((POINTS, LATENT_DIM)) * np.geomspace(1, 0.1, LATENT_DIM)
    points = latent @ rng.standard_normal((LATENT_DIM, DIM)) + 3 * rng.standard_normal(DIM)
    points[:, 7] = 400 + 20 * rng.standard_normal(POINTS)
    return points.astype(np.float32)


def two_nn(points: np.ndarray) -> float:
    return dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances))


def scikit_dimension(points: np.ndarray) -> float:
    from skdim.id import TwoNN

    return float(TwoNN(discard_fraction=0.1).fit(points.astype(np.float64)).dimension_)


def time_estimator(estimate: Callable[[np.ndarray], object], n_layers: int) -> tuple[list[object], list[float]]:
    """Return the estimates of the first layers, and the seconds of each."""
    estimates, seconds = [], []
    for layer in range(n_layers):
        points = random_layer(layer)
        started = time.perf_counter()
        estimates.append(estimate(points))
        seconds.append(time.perf_counter() - started)
    return estimates, seconds


def main() -> None:
    our_estimates, our_seconds = time_estimator(two_nn, LAYERS)
    _, analyze_seconds = time_estimator(estimate_dimension, TIMED_LAYERS)
    skdim_estimates, skdim_seconds = time_estimator(scikit_dimension, TIMED_LAYERS)
    difference = max(abs(a / b - 1) for a, b in zip(our_estimates, skdim_estimates, strict=False))
    rows = [
        (name, f"{np.mean(seconds):.2f}", f"{LAYERS * np.mean(seconds):.1f}")
        for name, seconds in (
            ("TwoNN", our_seconds),
            ("all of d2v analyze id", analyze_seconds),
            ("scikit-dimension's TwoNN", skdim_seconds),
        )
    ]
    report(
        "intrinsic_dimension",
        ("way", "s a layer", f"s for {LAYERS} layers"),
        rows,
        ratio=round(float(np.median(skdim_seconds) / np.median(our_seconds)), 2),
        seconds=round(sum(our_seconds), 1),
        largest_relative_difference=float(f"{difference:.1e}"),
        points=POINTS,
        dim=DIM,
    )


if __name__ == "__main__":
    main()
