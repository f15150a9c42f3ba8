"""What an adaptation changed: gains, the mean ratio of change (forgetting), and when pre-training learned a task.

The measures of Amuro & Char (Sun and Dredze, 2024): checkpoints of one model are scored before and after the same
adaptation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decoder2vec.errors import InputError
from decoder2vec.maths.metrics import mean_interval

Floats = NDArray[np.float64]

SAMPLES = 3000
"""Bootstrap samples, as in the paper."""
_MOST_OF_THE_RISE = 0.9
"""The share of its rise at which a task counts as learned."""


@dataclass(frozen=True)
class MeanRatio:
    """A mean ratio of change with its 95 % bootstrap interval: -0.6 means that 60 % of the scores were lost."""

    value: float
    low: float
    high: float
    """NaN with the lower bound if there is one ratio only."""
    ratios: tuple[float, ...]
    """What the mean is over."""


@dataclass(frozen=True)
class Learned:
    """When a task was learned over checkpoints, read off the scores before adaptation."""

    checkpoint: int | None
    """Index of the first checkpoint that reached 90 % of the rise; None if the scores are flat."""
    shares: tuple[float, ...]
    """For each checkpoint the share of the rise that it reached, 0 to 1; empty if the scores are flat."""

    @property
    def rises(self) -> bool:
        """Whether pre-training improved the task (group A of the paper); if not, its scores are flat (group B)."""
        return self.checkpoint is not None


def ratios_of_change(before: ArrayLike, after: ArrayLike) -> Floats:
    """[n] (after - before) / before.

    Raises:
        InputError: The lengths differ, there is no score, one is not finite, or a score before is not above 0.
    """
    old, new = np.asarray(before, np.float64).ravel(), np.asarray(after, np.float64).ravel()
    if old.shape != new.shape or not old.size:
        raise InputError(f"Scores before and after must come in pairs, not {old.size} and {new.size}.")
    if not (np.isfinite(old).all() and np.isfinite(new).all()):
        raise InputError("A score is not a finite number; leave its task out.")
    if (old <= 0).any():
        index = int(np.argmax(old <= 0))
        raise InputError(
            f"The ratio of change is not defined for the score {old[index]:g} before (number {index}); "
            "leave its task out."
        )
    return (new - old) / old


def mean_ratio_of_change(before: ArrayLike, after: ArrayLike, *, samples: int = SAMPLES, seed: int = 0) -> MeanRatio:
    """The mean of (after - before) / before over tasks that were not trained on, MRC in the paper.

    The interval draws the ratios with replacement, so it says how far the mean depends on the choice of tasks and
    checkpoints.

    Args:
        before: Scores before adaptation, one for each task, or for each task and checkpoint.
        after: Scores of the same after adaptation.
        samples: Bootstrap samples.
        seed: Seed of the samples.

    Raises:
        InputError: The lengths differ, there is no score, one is not finite, or a score before is not above 0.
    """
    ratios = ratios_of_change(before, after)
    bounds = mean_interval(ratios, samples=samples, seed=seed) if len(ratios) > 1 else (math.nan, math.nan)
    return MeanRatio(float(ratios.mean()), *bounds, tuple(ratios.tolist()))


def learned_when(scores: Sequence[float], smallest_rise: float) -> Learned:
    """When a task was learned: the first checkpoint with 90 % of the rise from the first checkpoint to the best one.

    Args:
        scores: Scores before adaptation, one for each checkpoint in the order of training.
        smallest_rise: Scores that rise by no more than this are flat; take the uncertainty of a difference.
    """
    values = np.asarray(scores, np.float64)
    if values.size < 2 or not np.isfinite(values).all():
        raise InputError("A learning curve needs finite scores of two checkpoints or more.")
    rise = values.max() - values[0]
    if rise <= smallest_rise:
        return Learned(None, ())
    shares = np.clip((values - values[0]) / rise, 0.0, 1.0)
    return Learned(int(np.argmax(shares >= _MOST_OF_THE_RISE)), tuple(shares.tolist()))
