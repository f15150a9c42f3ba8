"""From a similarity on a scale of its own to a score between 0 and 1 that means what the training scores meant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from torch import Tensor

Floats = NDArray[np.float64]

_KNOTS = 16
_RISE = 1e-3
"""Flat steps would tie scores that differ, so this much of the way from 0 to 1 is spread over all raw scores."""


@dataclass(frozen=True)
class Calibration:
    """A rising line through knots; without knots, scores are only kept between 0 and 1."""

    raw: tuple[float, ...] = ()
    score: tuple[float, ...] = ()

    @classmethod
    def fit(cls, predicted: Floats, target: Floats, *, top: float | None = 1.0) -> Calibration:
        """Fit on pairs with known scores in 0-1; `top` is the raw score of equal texts, which is mapped to exactly 1.

        Pairs are sorted and averaged in bins of equal size, made monotone, and joined by straight lines.
        """
        order = np.argsort(predicted, kind="stable")
        bins = [part for part in np.array_split(order, min(_KNOTS, max(2, len(order) // 10))) if len(part)]
        raw = np.array([predicted[part].mean() for part in bins])
        if top is not None:
            raw = np.minimum(raw, top - 1e-6)
        means = np.array([target[part].mean() for part in bins])
        risen = np.clip(np.asarray(isotonic_regression(means).x), 0.0, 1.0 if top is not None else 1 - _RISE)
        kept = np.concatenate([[True], np.diff(raw) > 1e-9])
        raw, risen = raw[kept], risen[kept]
        if top is not None:
            raw, risen = np.append(raw, top), np.append(np.minimum(risen, 1.0), 1.0)
        return cls(tuple(map(float, raw)), tuple(map(float, risen)))

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores between 0 and 1 in the order of the raw ones; in float64, since steps can be nearly flat."""
        values = scores.double().cpu().numpy()
        if not self.raw:
            return torch.as_tensor(np.clip(values, 0.0, 1.0))
        below, above = np.minimum(values - self.raw[-1], 0.0), np.maximum(values - self.raw[-1], 0.0)
        line = (1 - _RISE) * np.interp(values, self.raw, self.score) + _RISE / (1 - below)
        line = 1 - (1 - line) / (1 + _RISE * above)  # beyond the last knot on towards 1, and from 1 no further
        return torch.as_tensor(np.clip(line, 0.0, 1.0))

    def to_tensor(self) -> Tensor:
        """The knots as [2, knots]."""
        return torch.tensor([self.raw, self.score], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, knots: Tensor) -> Calibration:
        """The inverse of `to_tensor`."""
        raw, score = knots.tolist()
        return cls(tuple(raw), tuple(score))
