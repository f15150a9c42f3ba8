"""Tables, progress bars and messages of all commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

    from decoder2vec.training.loop import TrainingProgress


def info(message: str) -> None:
    """Print a message on stderr, so that stdout has results only."""
    import typer

    typer.echo(message, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    printed = Table(
        title=title and Text(title),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        printed.add_column(name, overflow="fold")
    for row in rows:
        printed.add_row(*map(Text, row))  # as text: square brackets in a template are not markup
    Console(width=None if sys.stdout.isatty() else 120).print(printed)


@contextmanager
def bars() -> Iterator[Progress]:
    """Progress bars on stderr, which appear with the first `add_bar`: an error before it is all that is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class TimeLeftColumn(TimeRemainingColumn):
        """The remaining time; empty if the total is unknown."""

        def render(self, task: Task) -> Text:
            return Text("") if task.total is None else Text("left ") + super().render(task)

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeLeftColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    try:
        yield progress
    finally:
        if progress.tasks:
            progress.stop()


def add_bar(progress: Progress, label: str, total: int | None) -> TaskID:
    """Add a bar, and show the bars if it is the first; `total` None if it is unknown."""
    task = progress.add_task(label, total=total)
    progress.start()
    return task


@contextmanager
def labelled_bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars on stderr, one for each label, shown at its first call: yields `advance(label, count, total)`."""
    with bars() as progress:
        tasks: dict[str, TaskID] = {}

        def advance(label: str, count: int, total: int | None) -> None:
            if label not in tasks:
                tasks[label] = add_bar(progress, label, total)
            progress.advance(tasks[label], count)

        yield advance


@contextmanager
def overall_bar() -> Iterator[Callable[[str, int, int], None]]:
    """One bar on stderr for all parts of a command, named by the current one: yields `advance(label, count, total)`."""
    with bars() as progress:
        task: TaskID | None = None

        def advance(label: str, count: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = add_bar(progress, label, total)
            progress.update(task, description=label, advance=count, total=total)

        yield advance


_LINE_EVERY = 20.0
"""Seconds between lines where no bar can be drawn."""


class TrainingBars:
    """Progress of a training: one bar per stage and seed with the last loss and dev score, or a line now and then."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.n_texts, self.last_line = 0, time.monotonic()
        self.stage, self.step = "", 0
        self.reading: TaskID | None = None
        self.task: TaskID | None = None

    def texts_read(self, count: int) -> None:
        """Count texts that have been read."""
        if self.reading is None:
            self.reading = add_bar(self.progress, "reading texts", None)
        self.n_texts += count
        self.progress.advance(self.reading, count)
        self._print_line(f"reading: {self.n_texts:,} texts")

    def __call__(self, state: TrainingProgress) -> None:
        """Show the state after a training step."""
        if state.stage != self.stage or state.step < self.step:
            self.stage, self.task = state.stage, add_bar(self.progress, state.stage, state.steps)
            if 1 < state.step < state.steps:
                info(f"{state.stage}: resuming from step {state.step - 1} of {state.steps}")
        self.step = state.step
        text = state.stage
        if state.loss is not None and state.score is not None:
            text += f"  loss {state.loss:.4f}  dev {state.score:.2f}"
        self.progress.update(self.task, completed=state.step, description=text)
        self._print_line(f"{text}  step {state.step}/{state.steps}")

    def _print_line(self, line: str) -> None:
        """Print a line now and then where no bar is drawn, so that a log is not silent for minutes."""
        if not sys.stderr.isatty() and time.monotonic() - self.last_line > _LINE_EVERY:
            self.last_line = time.monotonic()
            info(line)
