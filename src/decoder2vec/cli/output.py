"""How the verbs print: tables, bars and short lines, all in one manner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from decoder2vec.training.loop import Note


def info(message: str) -> None:
    """One line for the user, on stderr, so that stdout holds results only."""
    import typer

    typer.echo(message, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=title and Text(title),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))  # as text: square brackets in a template are not markup
    Console(width=None if sys.stdout.isatty() else 120).print(shown)


@contextmanager
def bars() -> Iterator[Progress]:
    """Progress bars on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


@contextmanager
def labelled_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars on stderr, one for each label, shown at its first call: yields `advance(label, count, total)`."""
    with ExitStack() as stack:
        progress: Progress | None = None
        tasks: dict[str, Any] = {}

        def advance(label: str, count: int, total: int) -> None:
            nonlocal progress
            progress = progress or stack.enter_context(bars())
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.advance(tasks[label], count)

        yield advance


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
                info(f"{note.stage}: going on from step {note.step - 1} of {note.steps}")
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
            info(line)
