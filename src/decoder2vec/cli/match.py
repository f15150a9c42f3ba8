"""`d2v match`: match two sides, such as jobs and resumes; print the best matches or write a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, EncoderOption, Layer, PoolingOption, TemplateOption
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.config import DEFAULT_ENCODER

if TYPE_CHECKING:
    from decoder2vec.matching.match import Matching

_MAX_PRINTED = 20
"""Documents whose best match is printed if there is a report."""
_MATCHES_PRINTED = 3
"""Best matches of each document that are printed if there is no report."""


def match(
    left: Annotated[
        Path,
        typer.Option(help="Jobs: .jsonl, .csv or .xlsx (id, title, text ...), or a folder of .txt .md .pdf .docx ..."),
    ],
    right: Annotated[Path, typer.Option(help="Resumes, or anything to match with the left side; as --left.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write a report: .html to read, .json as data. Without it the best matches are printed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    encoder: EncoderOption = DEFAULT_ENCODER,
    top: Annotated[int, typer.Option(help="Matches to report for each document.")] = 5,
    weight: Annotated[float, typer.Option(help="Weight of the dense score; shared terms have the remainder.")] = 0.8,
    aggregate: Annotated[
        str, typer.Option(help="What dense scores compare: sections, whole texts, or the best two sections.")
    ] = "sections",
    standardise: Annotated[
        bool,
        typer.Option("--standardise", help="Give all dimensions the same weight; for encoders that are not trained."),
    ] = False,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Match two sides, such as jobs and resumes, in both directions; everything runs locally."""
    options = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    with show_progress() as progress:
        from decoder2vec.matching.match import match as match_documents
        from decoder2vec.report.api import match_report
        from decoder2vec.report.html import check_report_path, json_text

        if out:
            check_report_path(out)  # before the work, not after it
            progress.expect("saving")
        matching = match_documents(
            left,
            right,
            encoder,
            top=top,
            weight=weight,
            aggregate=aggregate,
            standardise=standardise,
            encoder_options={**options, "device": device, "dtype": dtype},
        )
        if out:
            with progress.phase("saving"):
                match_report(matching, out, command=shlex.join(["d2v", *sys.argv[1:]]))
    for reason in (*matching.left.skipped, *matching.right.skipped):
        info(f"left out: {reason}")
    if as_json:
        typer.echo(json_text(matching), nl=False)
    elif out:
        _print_best(matching)
        typer.echo(str(out))
    else:
        _print_rankings(matching)


def _print_rankings(matching: Matching) -> None:
    """Print the best matches of every document by names."""
    rows = [
        (
            "" if rank else matching.left.documents[match.left].display_name,
            matching.right.documents[match.right].display_name,
            f"{match.score:.2f}",
            *([str(match.probability)] if match.probability else []),
        )
        for ranking in matching.for_left
        for rank, match in enumerate(ranking[:_MATCHES_PRINTED])
    ]
    table((matching.left.name, f"best of {matching.right.name}", *_score_columns(matching, "score")), rows)
    info(matching.score_meaning)


def _print_best(matching: Matching) -> None:
    """Print the first match of every document by ids; the content of documents stays in the report."""
    rows = [
        (
            matching.left.documents[best.left].id,
            matching.right.documents[best.right].id,
            f"{best.score:.2f}",
            "" if best.share_below is None else f"{100 * best.share_below:.0f} % of pairs",
            *([str(best.probability)] if best.probability else []),
        )
        for best, *_ in matching.for_left[:_MAX_PRINTED]
    ]
    table((matching.left.name, f"best of {matching.right.name}", *_score_columns(matching, "score", "above")), rows)
    if len(matching.left) > len(rows):
        info(f"... and {len(matching.left) - len(rows)} more in the report")
    info(matching.score_meaning)


def _score_columns(matching: Matching, *names: str) -> tuple[str, ...]:
    """Names of the columns of scores; with one for probabilities if the encoder is calibrated."""
    return (*names, "probability") if matching.for_left[0][0].probability else names
