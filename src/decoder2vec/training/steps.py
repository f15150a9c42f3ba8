"""The steps of a run: which examples each learns from, at which rate, and after which of them dev is looked at."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from decoder2vec.training.loop import Rows, Task

_WARM_UP = 0.1


class Steps:
    """All that a task asks for, in the order that a seed gives them."""

    def __init__(self, task: Task, seed: int) -> None:
        schedule = task.schedule
        most = schedule.steps or sys.maxsize
        self.seed, self.every = seed, schedule.evaluate_every
        self.epochs: list[list[Rows]] = []
        self.ends: set[int] = set()
        """After how many steps an epoch is over."""
        self.total = 0
        while self.total < most and (schedule.steps or len(self.epochs) < schedule.epochs):
            order = np.random.default_rng([seed, len(self.epochs)]).permutation(task.count)
            self.epochs.append(list(task.batches(order, schedule.batch)))
            if not self.epochs[-1]:
                break
            self.total = min(self.total + len(self.epochs[-1]), most)
            self.ends.add(self.total)

    def after(self, done: int) -> Iterator[tuple[int, Rows, int | None]]:
        """Those that are left: step, rows, and if it begins an epoch, the seed of that one's random numbers."""
        step = 0
        for number, epoch in enumerate(self.epochs):
            for place, rows in enumerate(epoch):
                if done <= step < self.total:
                    yield step, rows, None if place else self._mixed_seed(number)
                step += 1

    def is_look(self, done: int) -> bool:
        """Is dev looked at after so many steps?"""
        return done == self.total or (done % self.every == 0 if self.every else done in self.ends)

    def _mixed_seed(self, epoch: int) -> int:
        return int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])


def rate_factor(step: int, total: int) -> float:
    """The learning rate as a part of its peak: a straight rise, then half a cosine down to zero."""
    rise = max(1, round(_WARM_UP * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))
