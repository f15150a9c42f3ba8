"""`d2v migrate`: move an index to another encoder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, Layer, PoolingOption, TemplateOption, refuse_given
from decoder2vec.cli.output import info, show_progress
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.search.migration import Migration


def migrate(
    context: typer.Context,
    index: Annotated[str, typer.Argument(help="Folder, or postgresql://host/database#name.")],
    to: Annotated[str, typer.Option("--to", help="The new encoder: a saved encoder folder, or any model.")],
    map: Annotated[
        str | None,
        typer.Option("--map", help="Map the vectors instead of embedding again: procrustes, affine, mlp or auto."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Texts to learn a map from and to measure it on.")] = 5000,
    min_recall: Annotated[
        float, typer.Option(help="Share of the new encoder's recall@10 below which a map is refused.")
    ] = 0.95,
    queries: Annotated[Path | None, typer.Option(help="Queries to measure and show: JSONL with _id and text.")] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="Relevant documents of --queries: TSV with query-id, corpus-id and score.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write what changes for sample queries: .html to read, .json.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and compare, but change nothing.")] = False,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Move an index to another encoder while the old one serves; after a stop, the same command continues."""
    if not map:
        refuse_given(context, ["min_recall"], "--map")
    if not map and not dry_run:
        refuse_given(context, ["sample"], "--map or --dry-run")
    check_output_file(report, ".html", ".json", sources=[queries, qrels])
    with show_progress(keeps_work=not dry_run) as progress:
        from decoder2vec.search import migration

        progress.expect("loading the model")
        options = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
        result = migration.migrate(
            index,
            to,
            map=map,
            sample=sample,
            min_recall=min_recall,
            queries=queries,
            qrels=qrels,
            dry_run=dry_run,
            encoder_options={**options, "device": device, "dtype": dtype},
            notify=info,
        )
        if report:
            from decoder2vec.report.api import migration_report

            migration_report(result, report, command=shlex.join(["d2v", *sys.argv[1:]]))
    info(describe(result))
    if report:
        typer.echo(str(report))


def describe(result: Migration) -> str:
    """Return in one sentence what was done."""
    way = f"mapped by {result.map}" if result.map else "embedded again"
    if result.old_encoder == result.new_encoder:
        return f"nothing to do: {result.index} has the vectors of that encoder"
    if result.is_switched:
        return f"{result.index} has the new encoder now: {result.chunks} chunks {way}"
    return f"{result.chunks} chunks would be {way}; nothing was changed"
