"""The progress of a training loop: its steps and its evaluations on dev, also where a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from decoder2vec.progress import current_progress


class LoopProgress:
    """Counts steps in the phase "training", and evaluations on dev in a phase inside it.

    What is announced of both phases is shared out evenly, as the loop knows best how many of each there are.

    Args:
        stage: What is learned, for the line that a user sees.
        n_steps: Number of steps.
        n_evaluations: Number of evaluations, besides that of the start.
    """

    def __init__(self, stage: str, n_steps: int, n_evaluations: int) -> None:
        self.stage, self.n_steps = stage, n_steps
        self._steps_left, self._evaluations_left = n_steps, n_evaluations + 1

    def resume(self, n_steps: int, n_evaluations: int) -> None:
        """Expect no more what an earlier run has done: these steps, and besides that of the start these evaluations."""
        progress = current_progress()
        progress.remaining_work *= 1 - n_steps / max(1, self._steps_left)
        self._steps_left -= n_steps
        with progress.phase("evaluating"):
            done = min(n_evaluations + 1, self._evaluations_left)
            progress.remaining_work *= 1 - done / self._evaluations_left
            self._evaluations_left -= done

    def finish_step(self, scores: str = "") -> None:
        """Count a step; `scores` are those of the last evaluation."""
        n_left, self._steps_left = self._steps_left, self._steps_left - 1
        step = f"{self.stage}, step {self.n_steps - self._steps_left}/{self.n_steps}"
        current_progress().advance_part(n_left, f"{step}, {scores}" if scores else step)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Count an evaluation when the block ends."""
        with current_progress().phase("evaluating"):
            yield
            current_progress().advance_part(self._evaluations_left)
            self._evaluations_left -= 1
