"""Learning curves: intervals over seeds, and a power law from which larger data sets are forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

_EXPONENTS = np.geomspace(0.02, 2, 500)
_MIN_SIZES = 4
"""A power law has three parameters, and one size is held out."""
_ALLOWED_ERROR = 1.0
"""Points by which a forecast of the held-out size may be wrong, unless its seeds differ more."""


def half_interval(values: Sequence[float], level: float = 0.95) -> float | None:
    """Half the width of the Student-t interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(stats.t.ppf((1 + level) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


@dataclass(frozen=True)
class PowerLaw:
    """score = limit - gain * size ** -exponent."""

    limit: float
    gain: float
    exponent: float

    @classmethod
    def fit(cls, sizes: Sequence[float], scores: Sequence[float]) -> PowerLaw:
        """The least-squares fit; for each of many exponents limit and gain are a linear regression."""
        fits = []
        for exponent in _EXPONENTS:
            columns = np.stack([np.ones(len(sizes)), -(np.asarray(sizes, float) ** -exponent)], axis=1)
            coefficients, *_ = np.linalg.lstsq(columns, np.asarray(scores, float), rcond=None)
            error = float(np.square(columns @ coefficients - scores).sum())
            fits.append((error, cls(float(coefficients[0]), float(coefficients[1]), float(exponent))))
        return min(fits, key=lambda fit: fit[0])[1]

    def __call__(self, size: float) -> float:
        """The score at a size."""
        return self.limit - self.gain * float(size**-self.exponent)


@dataclass(frozen=True)
class Forecast:
    """What more data would give, and how wrong the same method was about the last size, fitted without it."""

    size: int
    """Examples in all."""
    score: float
    gain: float
    """Over the fit at the last size."""
    error: float
    """Forecast of the last size minus its score."""
    allowed: float
    """The largest error with which the forecast is believed."""

    @property
    def believed(self) -> bool:
        """Whether the method forecast the last size."""
        return abs(self.error) <= self.allowed


def forecast(sizes: Sequence[int], scores: Sequence[float], size: int, half_width: float | None) -> Forecast | None:
    """Extrapolate to `size` examples; None with fewer than four sizes, of which one is held out.

    Args:
        sizes: Examples, in ascending order.
        scores: The score at each.
        size: Where to extrapolate to.
        half_width: Half the interval of the last score over seeds.

    """
    if len(sizes) < _MIN_SIZES:
        return None
    law = PowerLaw.fit(sizes, scores)
    error = PowerLaw.fit(sizes[:-1], scores[:-1])(sizes[-1]) - scores[-1]
    allowed = max(_ALLOWED_ERROR, half_width or 0.0)
    return Forecast(size, law(size), law(size) - law(sizes[-1]), error, allowed)


def round_figures(value: float, figures: int) -> int:
    """A positive number rounded to a few significant figures."""
    return int(round(value, figures - 1 - math.floor(math.log10(value))))
