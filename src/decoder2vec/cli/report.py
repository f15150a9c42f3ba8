"""`d2v report`: one page on evaluated encoders or training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.output import info, show_progress


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Encoders made by `d2v train`; JSON of `d2v eval`, `d2v sweep` or `d2v analyze id`; folders of them."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and figures; by default report/ in the first folder.")
    ] = None,
    paper_examples: Annotated[
        bool, typer.Option("--paper-examples", help="Also show the example pairs of the FREEZE paper.")
    ] = False,
) -> None:
    """Compare evaluated encoders, or draw training runs: one page that holds everything, and its figures."""
    from decoder2vec.report import api

    with show_progress():
        page = api.report(paths, out, paper_examples=paper_examples, notify=info)
    typer.echo(str(page))
