"""How many dimensions do points fill? Two estimates from the distances to their nearest neighbours.

TwoNN (Facco et al., 2017) looks at the ratio of the second distance to the first: where points fill d dimensions, a
ratio exceeds m with the chance m^-d. Levina and Bickel's maximum likelihood (2004) looks at k neighbours. Both take
distances that `maths.neighbours` made; zero distances, which are duplicates, are refused here and left out there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError, unknown_name

Floats = NDArray[np.float64]

FEWEST = 10
"""Points below which TwoNN is refused."""
CDFS = ("i/N", "(i-1)/N")
"""How much of the distribution lies at or below the i-th of N sorted ratios.

The first is that of the paper's code and of scikit-dimension since 0.5, the second that of scikit-dimension before;
which gives estimates that are smaller by 0.07 % at 5,000 points and 0.7 % at 500.
"""
AVERAGES = ("mean", "inverse")
"""Local estimates are averaged as they are, as in the paper's code, or as their inverses, as scikit-dimension does."""
AREAS = ("paper", "unit")
"""What the trapezoids over L layers are divided by: L, as the paper writes, or L - 1, as its code does."""


def log_ratios(distances: Floats) -> Floats:
    """[n] log(r2 / r1) from [n, >= 2] distances to the nearest neighbours."""
    _refuse_zeros(distances)
    found: Floats = np.log(distances[:, 1]) - np.log(distances[:, 0])
    return found


def two_nn(logs: Floats, *, discard: float = 0.1, cdf: str = "i/N") -> float:
    """TwoNN of [n] log ratios: a line through the origin, fitted to the logarithm of their distribution.

    The largest `discard` of them are left out of the fit. With "i/N" the very largest always is: its share is all,
    and has no logarithm.
    """
    _check(logs, discard, cdf)
    return _slope(np.sort(logs), *_line(len(logs), discard, cdf))


def two_nn_likelihood(logs: Floats) -> float:
    """TwoNN without a fit and without leaving any ratio out: (N - 1) / sum of logs."""
    _check(logs, 0.0, "i/N")
    total = float(logs.sum())
    return (len(logs) - 1) / total if total > 0 else float("nan")


def local_dimensions(distances: Floats) -> Floats:
    """[n] Levina-Bickel estimates from [n, k] ascending distances; infinite where all k are equal."""
    _refuse_zeros(distances)
    k = distances.shape[1]
    if k < 2:
        raise InputError("Maximum likelihood needs 2 neighbours or more.")
    with np.errstate(divide="ignore"):
        found: Floats = (k - 1) / np.log(distances[:, -1:] / distances[:, :-1]).sum(axis=1)
    return found


def maximum_likelihood(local: Floats, *, average: str = "mean") -> float:
    """One number from the local estimates."""
    if average not in AVERAGES:
        raise unknown_name("average", average, AVERAGES)
    return float(local.mean()) if average == "mean" else float(1 / (1 / local).mean())


def area(values: Sequence[float] | Floats, *, by: str = "paper") -> float:
    """The area under a curve over L layers, normalised; the layers are 1 to L, without the embeddings."""
    if by not in AREAS:
        raise unknown_name("area", by, AREAS)
    curve = np.asarray(values, np.float64)
    if len(curve) < 2:
        return float("nan")
    return float((curve[1:] + curve[:-1]).sum() / 2 / (len(curve) if by == "paper" else len(curve) - 1))


def parts(count: int, share: float, samples: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which of `count` texts are in each random part: the same for every layer and every encoder."""
    for number in range(samples):
        inside = np.zeros(count, bool)
        inside[np.random.default_rng((seed, count, number)).permutation(count)[: int(share * count)]] = True
        yield inside


def half_sample_interval(value: float, halves: Floats) -> tuple[float, float]:
    """The 95 % interval around an estimate from those of random halves of the points, none of them drawn twice.

    Halves differ from each other as much as whole samples do, and their neighbours are sought anew. To draw ratios
    with replacement looks simpler and is too sure of itself: neighbours share distances, so their ratios hang together.
    TwoNN depends on the number of points, so halves lie elsewhere; only how they scatter is used.
    """
    low, high = interval(halves - halves.mean())
    return value + low, value + high


def bootstrap(count: int, samples: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """How often each of `count` points is drawn with replacement, for each sample."""
    for number in range(samples):
        drawn = np.random.default_rng((seed, number)).integers(0, count, count)
        yield np.bincount(drawn, minlength=count)


def likelihood_samples(local: Floats, times: Iterable[NDArray[np.intp]], *, average: str) -> Floats:
    """Maximum likelihood of each bootstrap sample, in which local estimate i stands `times[i]` times."""
    found = []
    for each in times:
        total = each @ (local if average == "mean" else 1 / local)
        found.append(total / each.sum() if average == "mean" else each.sum() / total)
    return np.array(found)


def interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the samples."""
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def _line(count: int, discard: float, cdf: str) -> tuple[Floats, int]:
    """-log(1 - F) of the ratios that are kept, and how many these are."""
    kept = int(count * (1 - discard))
    below = np.arange(1, kept + 1) if cdf == "i/N" else np.arange(kept)
    below = below[below < count]
    return -np.log1p(-below / count), len(below)


def _slope(ordered: Floats, line: Floats, kept: int) -> float:
    x = ordered[:kept]
    squares = float(x @ x)
    return float(x @ line) / squares if squares > 0 else float("nan")


def _check(logs: Floats, discard: float, cdf: str) -> None:
    if cdf not in CDFS:
        raise unknown_name("convention", cdf, CDFS)
    if not 0 <= discard < 0.9:
        raise InputError(f"A share of {discard:g} of the ratios cannot be left out; give 0 or more, and less than 0.9.")
    if len(logs) < FEWEST:
        raise InputError(f"TwoNN needs {FEWEST} different points or more, not {len(logs)}.")
    if not np.isfinite(logs).all():
        raise InputError(
            "A ratio of distances is not finite; leave out points that are not finite or stand there twice."
        )


def _refuse_zeros(distances: Floats) -> None:
    if distances.size and not (distances[:, 0] > 0).all():
        raise InputError("Some points stand there twice; leave duplicates out first.")
