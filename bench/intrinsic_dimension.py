"""Intrinsic dimension of 30 layers of 5,000 vectors: TwoNN alone, all that `d2v analyze id` says, and scikit-dimension.

Run: python bench/intrinsic_dimension.py
"""

from __future__ import annotations

import time

import numpy as np

from decoder2vec.analysis.intrinsic_dimension import estimate_dimension
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours
from measure import report

LAYERS, POINTS, DIM, INSIDE, SAMPLED = 30, 5000, 576, 40, 3


def layer(number: int) -> np.ndarray:
    """Vectors that fill 40 dimensions unevenly, far from the origin, with one huge dimension, as a decoder's do."""
    rng = np.random.default_rng(number)
    inside = rng.standard_normal((POINTS, INSIDE)) * np.geomspace(1, 0.1, INSIDE)
    points = inside @ rng.standard_normal((INSIDE, DIM)) + 3 * rng.standard_normal(DIM)
    points[:, 7] = 400 + 20 * rng.standard_normal(POINTS)
    return points.astype(np.float32)


def two_nn(points: np.ndarray) -> float:
    return dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points, 2).distances))


def scikit_dimension(points: np.ndarray) -> float:
    from skdim.id import TwoNN

    return float(TwoNN(discard_fraction=0.1).fit(points.astype(np.float64)).dimension_)


def timed(job: object, numbers: range) -> tuple[list[float], list[float]]:
    found, seconds = [], []
    for number in numbers:
        points = layer(number)
        started = time.perf_counter()
        found.append(job(points))
        seconds.append(time.perf_counter() - started)
    return found, seconds


def main() -> None:
    values, ours = timed(two_nn, range(LAYERS))
    _, everything = timed(estimate_dimension, range(SAMPLED))
    theirs_values, theirs = timed(scikit_dimension, range(SAMPLED))
    gap = max(abs(a / b - 1) for a, b in zip(values, theirs_values, strict=False))
    rows = [
        ("TwoNN", f"{np.mean(ours):.2f}", f"{sum(ours):.1f}"),
        ("all of d2v analyze id", f"{np.mean(everything):.2f}", f"{LAYERS * np.mean(everything):.1f}"),
        ("scikit-dimension's TwoNN", f"{np.mean(theirs):.2f}", f"{LAYERS * np.mean(theirs):.1f}"),
    ]
    report(
        "intrinsic_dimension",
        ("way", "s a layer", f"s for {LAYERS} layers"),
        rows,
        ratio=round(float(np.median(theirs) / np.median(ours)), 2),
        seconds=round(sum(ours), 1),
        largest_relative_difference=float(f"{gap:.1e}"),
        points=POINTS,
        dim=DIM,
    )


if __name__ == "__main__":
    main()
