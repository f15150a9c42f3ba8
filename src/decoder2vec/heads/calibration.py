"""Calibration: from raw similarities to scores between 0 and 1 on the scale of the training scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

_MAX_KNOTS = 16
_SLOPE = 1e-3
"""Flat steps would tie scores that differ, so this share of the range from 0 to 1 is spread over all raw scores."""


@dataclass(frozen=True)
class Calibration:
    """A rising piecewise linear function; without knots, scores are only clipped to 0-1."""

    raw: tuple[float, ...] = ()
    """Raw scores of the knots, rising."""
    score: tuple[float, ...] = ()
    """Calibrated scores of the knots."""

    @classmethod
    def fit(cls, predicted: Floats, target: Floats, *, top: float | None = 1.0) -> Calibration:
        """Fit on pairs with known scores: isotonic regression over bins of equal size, joined by straight lines.

        Args:
            predicted: Raw scores of the pairs.
            target: Known scores of the pairs, between 0 and 1.
            top: Raw score of equal texts, which is mapped to exactly 1; None if they have no fixed score.
        """
        order = np.argsort(predicted, kind="stable")
        bins = [rows for rows in np.array_split(order, min(_MAX_KNOTS, max(2, len(order) // 10))) if len(rows)]
        raw = np.array([predicted[rows].mean() for rows in bins])
        if top is not None:
            raw = np.minimum(raw, top - 1e-6)
        from scipy.optimize import isotonic_regression  # half a second, which only training needs

        means = np.array([target[rows].mean() for rows in bins])
        scores = np.clip(np.asarray(isotonic_regression(means).x), 0.0, 1.0 if top is not None else 1 - _SLOPE)
        distinct = np.concatenate([[True], np.diff(raw) > 1e-9])
        raw, scores = raw[distinct], scores[distinct]
        if top is not None:
            raw, scores = np.append(raw, top), np.append(np.minimum(scores, 1.0), 1.0)
        return cls(tuple(map(float, raw)), tuple(map(float, scores)))

    def __call__(self, scores: Tensor) -> Tensor:
        """Return scores between 0 and 1 in the order of the raw ones; in float64, because steps can be nearly flat."""
        values = scores.double().cpu().numpy()
        if not self.raw:
            return torch.as_tensor(np.clip(values, 0.0, 1.0))
        below, above = np.minimum(values - self.raw[-1], 0.0), np.maximum(values - self.raw[-1], 0.0)
        line = (1 - _SLOPE) * np.interp(values, self.raw, self.score) + _SLOPE / (1 - below)
        line = 1 - (1 - line) / (1 + _SLOPE * above)  # beyond the last knot it approaches 1 and never exceeds it
        return torch.as_tensor(np.clip(line, 0.0, 1.0))

    def to_tensor(self) -> Tensor:
        """Return the knots as [2, knots]."""
        return torch.tensor([self.raw, self.score], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, knots: Tensor) -> Calibration:
        """Inverse of `to_tensor`."""
        raw, score = knots.tolist()
        return cls(tuple(raw), tuple(score))
