"""scipy's bootstrap, whose random numbers have another name before scipy 1.15."""

from __future__ import annotations

import inspect
from typing import Any

from scipy import stats

_RNG = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"


def bootstrap(*args: Any, rng: Any, **options: Any) -> Any:
    """`scipy.stats.bootstrap`."""
    return stats.bootstrap(*args, **options, **{_RNG: rng})
