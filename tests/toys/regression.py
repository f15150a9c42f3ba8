"""A linear regression that the training loop learns in a few steps, and runs of it that are killed."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from decoder2vec.training.loop import Schedule, TrainingTask

X = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32))
Y = X @ torch.linspace(-1, 1, 6) + 0.3


class Killed(Exception):
    """Ends a run as a crash would."""


class Line(nn.Module):
    """A linear regression with dropout, so that training draws random numbers."""

    def __init__(self, start=0.1):
        super().__init__()
        self.line = nn.Linear(6, 1)
        nn.init.constant_(self.line.weight, start)
        nn.init.zeros_(self.line.bias)

    def forward(self, x):
        return self.line(nn.functional.dropout(x, 0.2, self.training))[:, 0]


def regression_task(module, schedule=None, scores=None, kill_after=None, seen=None):
    """Training by mean squared error: 4 batches per epoch, 24 steps by default.

    Args:
        module: A `Line`.
        schedule: By default 6 epochs of batches of 16.
        scores: Dev scores to return one by one, instead of the real ones.
        kill_after: Raise `Killed` in the step after this many.
        seen: A list that collects the rows of every batch.

    """
    scripted = iter(scores) if scores is not None else None
    n_batches = 0

    def loss(rows):
        nonlocal n_batches
        n_batches += 1
        if kill_after is not None and n_batches > kill_after:
            raise Killed
        if seen is not None:
            seen.append(rows.copy())
        return (module(X[rows]) - Y[rows]).pow(2).mean()

    @torch.no_grad()
    def dev_metric():
        return next(scripted) if scripted is not None else -float((module(X) - Y).pow(2).mean())

    return TrainingTask("line", 50, loss, dev_metric, schedule or Schedule(epochs=6, batch=16, rate=0.05, patience=6))


def state_of(module):
    """A copy of all parameters by name."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def equal_states(a, b):
    """Whether two states are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
