"""`d2v report`: look at what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.show import bars, say


def report(
    folder: Annotated[Path, typer.Argument(help="An encoder made by `d2v train`, or a folder of encoders or results.")],
    out: Annotated[Path | None, typer.Option(help="Folder for page and figures; by default report/ in it.")] = None,
) -> None:
    """Draw the figures of one or several training runs, and write one page that holds them all."""
    from decoder2vec.analysis.report.runs import find_runs
    from decoder2vec.analysis.report.write import write_report

    runs = find_runs(folder)
    with bars() as progress:
        task = progress.add_task("drawing", total=len(runs))
        page = write_report(runs, out or folder / "report", watch=lambda _: progress.advance(task))
    say(f"{len(runs)} run(s): {', '.join(run.name for run in runs)}")
    typer.echo(str(page))
