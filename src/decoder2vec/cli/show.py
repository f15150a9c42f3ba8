"""How the verbs print: tables, bars and short lines, all in one manner."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def say(message: str) -> None:
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
