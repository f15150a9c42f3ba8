"""`d2v sweep`: find the layer, pooling and template that give the best embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Columns, Device, Dtype, Engine, Limit, Model, SkipBad, Workers, split_names
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.analysis.sweep import Sweep


def sweep(
    model: Model,
    data: Annotated[Path, typer.Option(help="Scored pairs to choose on (.tsv, .csv, .jsonl, or stsb:dev).")],
    out: Annotated[Path, typer.Option(help="Folder for sweep.json, sweep.png and the winning encoder.")],
    test: Annotated[Path | None, typer.Option(help="Scored pairs on which the winner alone is scored, once.")] = None,
    templates: Annotated[str | None, typer.Option(help="Comma-separated names, or one string with {text}.")] = None,
    poolings: Annotated[str | None, typer.Option(help="Comma-separated poolings; by default all.")] = None,
    attentions: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated; by default causal,bidirectional, in the quick set causal; '' tries re-routing alone."
        ),
    ] = None,
    reroute: Annotated[
        str, typer.Option(help="Let early tokens see the end of a text: prepend, kv, or with layers, prepend:2-8.")
    ] = "",
    heads: Annotated[
        str | None, typer.Option(help="none, standardise, whiten, remove_top; by default none,standardise.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Try few readings; the default with fewer than 200 pairs.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Try all readings; the default with 200 pairs or more.")] = False,
    columns: Columns = "sentence1,sentence2,score",
    limit: Limit = None,
    skip_bad: SkipBad = False,
    device: Device = None,
    dtype: Dtype = None,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Score every layer x pooling x template x attention on your own pairs, and save the best as an encoder."""
    if quick and full:
        raise InputError("--quick tries few readings and --full all; give one of the two.")
    one_template = templates is not None and "{text}" in templates
    with show_progress(keeps_work=True):
        from decoder2vec.report.sweep import sweep as run_sweep

        result = run_sweep(
            model,
            data,
            out=out,
            test=test,
            templates=(templates or "",) if one_template else _names(templates),
            poolings=_names(poolings),
            attentions=_names(attentions),
            reroute=split_names(reroute),
            heads=_names(heads),
            quick=quick if quick or full else None,
            columns=split_names(columns),
            limit=limit,
            skip_bad=skip_bad,
            device=device,
            dtype=dtype,
            engine=engine,
            workers=workers,
            notify=info,
        )
    if result.test:
        low, high = result.test["spearman_95"]
        typer.echo(
            f"{result.test['task']}, scored once: Spearman {result.test['spearman']:.2f} [{low:.1f}, {high:.1f}], "
            f"Pearson {result.test['pearson']:.2f}"
        )
    info(f"wrote {out / 'sweep.json'}, {out / 'sweep.png'} and the encoder {out / 'encoder'}")
    print_sweep(result)


def _names(option: str | None) -> tuple[str, ...] | None:
    """Comma-separated names; None if the option was not given."""
    return None if option is None else split_names(option)


def print_sweep(result: Sweep, count: int = 12) -> None:
    """Print the best row of every template, attention, pooling and head, best first."""
    from decoder2vec.analysis.sweep import best_by

    rows = [
        (
            row.template,
            row.attention,
            f"{row.layer}{' normed' if row.normed else ''}",
            row.pooling,
            row.head,
            f"{row.spearman:.2f}",
            f"{row.pearson:.2f}",
        )
        for row in best_by(result.rows, "template", "attention", "pooling", "head")[:count]
    ]
    title = f"{result.model} on {result.data.name}: {len(result.rows)} combinations, best first"
    table(("template", "attention", "layer", "pooling", "head", "Spearman", "Pearson"), rows, title)
    if result.selection:
        typer.echo(result.selection.summary())
