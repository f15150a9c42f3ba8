"""What one seed came to, whatever the recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(kw_only=True)
class Result:
    """Scores of a seed, and what there is to say about how they came about."""

    seed: int
    dev: dict[str, dict[str, float]] = field(default_factory=dict)
    test: dict[str, dict[str, float]] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    """Mean scores of pairs that any scorer ought to know: equal texts, with and without full stop, random ones."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Histories of the stages, errors of the autoencoders, the cost of a cut."""
    seconds: float = 0.0
    own_score: float | None = None
    """What a seed is chosen by where there are no dev pairs."""

    def dev_mean(self, metric: str) -> float:
        """The score a seed is chosen by."""
        if self.own_score is not None:
            return self.own_score
        return float(np.mean([scores[metric] for scores in self.dev.values()]))

    def to_json(self) -> dict[str, Any]:
        """For the results file."""
        fields = ("seed", "dev", "test", "checks", "notes")
        found = {name: getattr(self, name) for name in fields} | {"seconds": round(self.seconds, 2)}
        return found if self.own_score is None else found | {"own_score": round(self.own_score, 4)}
