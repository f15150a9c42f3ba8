"""A clock that only the test moves, and a listener that records what a user would see."""

from __future__ import annotations

from decoder2vec.progress import Progress


class Clock:
    """Seconds; each call may take a little time."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Recorder:
    """Every report in order."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        """Names of phases, each once where it begins."""
        self.notes: list[str] = []
        """Notes, each once where it appears."""
        self.fractions: list[float] = []
        self.totals: list[float] = []
        """Announced work at every report."""

    def __call__(self, progress: Progress) -> None:
        if progress.label and progress.label not in self.labels:
            self.labels.append(progress.label)
        if progress.note and progress.note not in self.notes:
            self.notes.append(progress.note)
        self.fractions.append(progress.fraction)
        self.totals.append(sum(phase.total for phase in progress.phases))


class ShownProgress(Recorder):
    """What a command shows where there is no terminal, recorded instead of printed."""

    def close(self):
        """Nothing is drawn."""
