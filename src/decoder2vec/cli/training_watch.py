"""What a user sees of a training while it runs: bars, or a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from decoder2vec.cli.show import say

if TYPE_CHECKING:
    from decoder2vec.training.loop import Note

_SAY_EVERY = 20.0


class TrainingWatch:
    """One bar for each stage of each seed, with the last epoch's loss and dev score."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.reading = progress.add_task("reading texts", total=None)
        self.texts, self.said = 0, time.monotonic()
        self.stage, self.step, self.task = "", 0, None

    def read(self, count: int) -> None:
        """So many more texts are in the store."""
        self.texts += count
        self.progress.advance(self.reading, count)
        self._say(f"reading: {self.texts:,} texts")

    def __call__(self, note: Note) -> None:
        """A step was made."""
        if note.stage != self.stage or note.step < self.step:
            self.stage, self.task = note.stage, self.progress.add_task(note.stage, total=note.steps)
            if 1 < note.step < note.steps:
                say(f"{note.stage}: going on from step {note.step - 1} of {note.steps}")
        self.step = note.step
        text = note.stage
        if note.loss is not None and note.score is not None:
            text += f"  loss {note.loss:.4f}  dev {note.score:.2f}"
        self.progress.update(self.task, completed=note.step, description=text)
        self._say(f"{text}  step {note.step}/{note.steps}")

    def _say(self, line: str) -> None:
        """A plain line now and then where no bar is drawn: a log should not stay silent for minutes."""
        if not sys.stderr.isatty() and time.monotonic() - self.said > _SAY_EVERY:
            self.said = time.monotonic()
            say(line)
