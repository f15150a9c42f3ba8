"""How long and how fast something is trained."""

from __future__ import annotations

from dataclasses import dataclass

from decoder2vec.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """Epochs, batches, the learning rate and when to stop."""

    epochs: int = 12
    steps: int = 0
    """So many steps, however many epochs that takes; 0: as many as the epochs have."""
    batch: int = 64
    rate: float = 1e-3
    """The peak of the learning rate: it rises over the first tenth of the steps and falls to zero at the end."""
    weight_decay: float = 0.01
    patience: int = 4
    """Stop after this many dev scores in a row that are not better."""
    evaluate_every: int = 0
    """Steps between dev scores; 0: one at the end of each epoch."""
    clip: float = 0.0
    """The largest norm of all gradients together; larger ones are scaled down to it. 0: no limit."""

    def __post_init__(self) -> None:
        least = {
            "epochs": 0,
            "steps": 0,
            "batch": 1,
            "patience": 1,
            "rate": 0,
            "weight_decay": 0,
            "evaluate_every": 0,
            "clip": 0,
        }
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise InputError(f"{name} must be {lowest} or more, not {getattr(self, name)}.")
