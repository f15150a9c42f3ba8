"""`d2v match`: who fits whom, and why."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    EncoderOption,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
)
from decoder2vec.cli.output import info, table

if TYPE_CHECKING:
    from decoder2vec.matching.match import Matching


def match(
    left: Annotated[
        Path, typer.Option(help="Jobs: .jsonl or .csv (id, title, text ...), or a folder of .txt .md .pdf .docx.")
    ],
    right: Annotated[Path, typer.Option(help="Resumes, or whatever shall be matched with the left side; as --left.")],
    out: Annotated[Path, typer.Option(help="The report: .html to read, .json as data.")],
    encoder: EncoderOption = "smollm2-135m",
    top: Annotated[int, typer.Option(help="Matches to show for each document.")] = 5,
    weight: Annotated[float, typer.Option(help="Of the score by meaning; the rest is BM25's.")] = 0.8,
    aggregate: Annotated[str, typer.Option(help="What is compared: sections, whole texts, or the best sections.")] = (
        "sections"
    ),
    standardise: Annotated[
        bool,
        typer.Option("--standardise", help="Fit the scale of all dimensions: for a model nobody trained for this."),
    ] = False,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Match two sides, such as jobs and resumes, both ways; nothing leaves this machine."""
    from decoder2vec.matching.match import MatchChoices, match_sides
    from decoder2vec.matching.sides import read_side
    from decoder2vec.report.api import match_report
    from decoder2vec.report.match_page import check_report_path

    check_report_path(out)  # before the work is done, not after
    choices = MatchChoices(weight=weight, aggregate=aggregate, top=top, standardise=standardise)
    sides = read_side(left), read_side(right)
    for side in sides:
        for reason in side.skipped:
            info(f"left out: {reason}")
    model = open_encoder(encoder, device, layer=layer, pooling=pooling, template=template, attention=attention)
    found = match_sides(*sides, model, choices, show_progress_bar=sys.stderr.isatty())
    match_report(found, out, command=shlex.join(["d2v", *sys.argv[1:]]))
    _print(found)
    typer.echo(str(out))


def _print(found: Matching) -> None:
    """The first match of every document, by id: what is in a document stays in the report."""
    rows = [
        (found.left.documents[best.left].id, found.right.documents[best.right].id, f"{best.score:.3f}")
        for best, *_ in found.for_left[:20]
    ]
    table((found.left.name, f"best of {found.right.name}", "score"), rows)
    if len(found.left) > len(rows):
        info(f"... and {len(found.left) - len(rows)} more in the report")
