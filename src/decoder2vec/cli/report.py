"""`d2v report`: one page on evaluated encoders or training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import Device, Limit, split_names
from decoder2vec.cli.output import info, show_progress


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Encoders made by `d2v train`; JSON of `d2v eval`, `d2v sweep` or `d2v analyze id`; folders of them. "
            "With --data: encoders to score, the one before training first."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and figures; by default report/ in the first folder.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Score the encoders on this folder of tasks first; a second call continues.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of the folder: all, or names and kinds such as sts,scifact,clustering.")
    ] = None,
    trained_on: Annotated[
        str | None,
        typer.Option(help="Tasks or kinds that the training was for: no part of the mean ratio of change."),
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(help="With --data: also score with this text before each text but documents.")
    ] = None,
    limit: Limit = None,
    device: Device = None,
    paper_examples: Annotated[
        bool, typer.Option("--paper-examples", help="Also show the example pairs of the FREEZE paper.")
    ] = False,
) -> None:
    """Compare evaluated encoders, or draw training runs: one page that holds everything, and its figures.

    Two paths or more with one evaluation each are also compared with the first, the encoder before training: what
    did the training cost on tasks that it was not for? `d2v report before/ after/ --data DATA` scores them first.
    """
    from decoder2vec.report import api

    with show_progress(keeps_work=data is not None):
        page = api.report(
            paths,
            out,
            data=data,
            tasks=tasks,
            trained_on=split_names(trained_on) if trained_on else (),
            instruction=instruction,
            limit=limit,
            device=device,
            paper_examples=paper_examples,
            notify=info,
        )
    typer.echo(str(page))
