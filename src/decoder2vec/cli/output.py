"""Tables, messages and the progress of all commands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from decoder2vec.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import Task

_command_start: ContextVar[float | None] = ContextVar("command_start", default=None)
_keeps_work: ContextVar[bool] = ContextVar("keeps_work", default=False)


def start_command() -> None:
    """Note that a command begins: its time counts from here, so that it includes imports such as torch's."""
    _command_start.set(time.monotonic())
    _keeps_work.set(False)


def interruption() -> str:
    """What to say of a command that was interrupted."""
    return "interrupted; finished work is kept and reused by the next run" if _keeps_work.get() else "interrupted"


def is_main_process() -> bool:
    """Whether this process prints: of several that a launcher such as torchrun has started, the first."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def info(message: str) -> None:
    """Print a message on stderr, so that stdout has results only."""
    if not is_main_process():
        return
    sys.stderr.write(f"{message}\n")  # not by typer.echo, which may write past the bar into its line
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    if not is_main_process():
        return
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
def show_progress(*, keeps_work: bool = False) -> Iterator[Progress]:
    """Show the progress of a command on stderr: one bar on a terminal, else a line now and then; at the end the time.

    The bar disappears at the end, so that results, or one error, are what stays. Imports that take long belong inside.

    Args:
        keeps_work: Whether the same command, if it is interrupted, goes on with what it had finished.
    """
    _keeps_work.set(keeps_work)
    show: _ProgressBar | _ProgressLines = _ProgressBar() if _can_draw() else _ProgressLines()
    progress = Progress(show, started=_command_start.get())
    try:
        with closing(show), progress:
            show(progress)  # before torch is imported, which takes a while
            yield progress
    except KeyboardInterrupt:  # the last line may be minutes old, and the bar is gone
        if progress.label:
            info(_describe(progress))
        raise
    info(f"done in {format_duration(progress.elapsed)}")


def format_duration(seconds: float) -> str:
    """A duration for people: 0.8 s, 42 s, 3 min 12 s or 2 h 5 min."""
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _can_draw() -> bool:
    """Whether stderr is a terminal on which a line can be drawn again; FORCE_COLOR does not make a log one."""
    return is_main_process() and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class _ProgressBar:
    """One bar for the whole command, named by the current phase: it appears with the first phase."""

    def __init__(self) -> None:
        self._bar: Bars | None = None

    def __call__(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = _draw_bar(progress)
            self._bar.start()
        total = 1.0 if progress.knows_work else None  # None: the bar moves to and fro
        description, completed = _describe_phase(progress), progress.fraction
        self._bar.update(self._bar.task_ids[0], description=description, completed=completed, total=total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()


def _draw_bar(progress: Progress) -> Bars:
    """One line at any width of the terminal: label, bar and times; where they do not fit, the label is cut."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    console = Console(stderr=True)
    bar_width = min(_MAX_BAR_WIDTH, console.width // 5)

    class LabelColumn(ProgressColumn):
        """The current phase, as far as there is room beside bar and times."""

        def render(self, task: Task) -> Text:
            label = Text(task.description)
            room = console.width - bar_width - len(_describe_times(progress)) - 2  # a space after each column
            label.truncate(max(room, 1), overflow="ellipsis")
            return label

    class TimeColumn(ProgressColumn):
        """Percentage, time left and time so far; without expected phases the time so far alone."""

        def render(self, task: Task) -> Text:
            return Text(_describe_times(progress))

    label, bar_column, times = (Column(no_wrap=True) for _ in range(3))
    columns = (LabelColumn(label), BarColumn(bar_width, table_column=bar_column), TimeColumn(times))
    # stdout is not redirected to the console of the bar: it may be piped
    bar = Bars(*columns, console=console, transient=True, redirect_stdout=False)
    bar.add_task("", total=None)
    return bar


def _describe(progress: Progress) -> str:
    """The current phase, its note, and how far the whole is."""
    return _describe_phase(progress) + (f" ({_describe_state(progress)})" if progress.knows_work else "")


def _describe_phase(progress: Progress) -> str:
    return " ".join(filter(None, (progress.label or "starting", progress.note)))


def _describe_times(progress: Progress) -> str:
    elapsed = f"after {format_duration(progress.elapsed)}"
    return f"{_describe_state(progress)}, {elapsed}" if progress.knows_work else elapsed


def _describe_state(progress: Progress) -> str:
    left = progress.seconds_left
    return f"{progress.fraction:.0%}" + (f", {format_duration(max(1, round(left)))} left" if left else "")


_MAX_BAR_WIDTH = 40
"""Characters; on a narrow terminal a fifth of its width."""
_FIRST_LINE_AFTER = 5.0
"""Seconds of silence after which the begin of a phase is printed where no bar can be drawn."""
_LINE_EVERY = 20.0
"""Seconds between lines within a phase, at least."""
_LINE_SHARE = 0.05
"""Lines of a long run come after this share of the time so far, so that a log stays short."""


class _ProgressLines:
    """A line when a phase begins, and now and then within it: a log is neither silent for minutes nor flooded."""

    def __init__(self) -> None:
        self._last_line: float | None = None
        self._depth = 0

    def __call__(self, progress: Progress) -> None:
        elapsed = progress.elapsed
        if self._last_line is None:
            self._last_line = elapsed
        begins = progress.depth == 1 and self._depth == 0
        self._depth = progress.depth
        wait = _FIRST_LINE_AFTER if begins else max(_LINE_EVERY, _LINE_SHARE * elapsed)
        if progress.label and elapsed - self._last_line >= wait:
            self._last_line = elapsed
            info(_describe(progress))

    def close(self) -> None:
        """There is nothing to remove."""
