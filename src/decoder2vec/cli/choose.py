"""`d2v choose`: find the models, adapters and layers that should feed a task."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, split_names
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.choosing.search import Choice, Probe

_MAX_LAYERS = 12
"""Layers that are printed in quick mode."""


def choose(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Models or saved encoders, the base first: PATH, NAME=PATH, PATH#ADAPTER, MODEL#bidirectional."
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Training examples: text, label; or sentence1, sentence2, score; or tokens, tags; or text, start1, "
            "end1, start2, end2, label; or GAP."
        ),
    ],
    valid: Annotated[Path | None, typer.Option(help="Examples to choose on; by default a fifth of the texts.")] = None,
    test: Annotated[Path | None, typer.Option(help="Examples to report on; by default a fifth of the texts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for choose.json and choose.png.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Rank layers by LogME, without training.")] = False,
    layers: Annotated[str, typer.Option(help="Comma-separated layers to try; by default all.")] = "",
    poolings: Annotated[
        str, typer.Option(help="Comma-separated poolings to try; by default that of each source.")
    ] = "",
    aggregators: Annotated[str, typer.Option(help="How sources are combined.")] = "mean,sum,attention,concat",
    target: Annotated[
        str | None, typer.Option(help="A model trained for the task, to compare the sources with.")
    ] = None,
    align_words: Annotated[
        bool, typer.Option("--align-words", help="Let sources have different tokenizers; words are aligned.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; every probe is trained with each.")] = "1,2,3",
    epochs: Annotated[
        int, typer.Option(help="Epochs at most; training stops where validation scores do not rise.")
    ] = 40,
    limit: Annotated[int | None, typer.Option(help="Use at most this many texts of each file, evenly spaced.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Find which of your models, adapters and layers should feed a task, and whether combining them pays."""
    with show_progress(keeps_work=True):
        from decoder2vec.choosing.probe import ProbeConfig
        from decoder2vec.report.choose import choose as run_choose

        result = run_choose(
            sources,
            data,
            valid=valid,
            test=test,
            out=out,
            quick=quick,
            layers=_integers(layers, "--layers"),
            poolings=split_names(poolings),
            aggregators=split_names(aggregators),
            target=target,
            align_words=align_words,
            config=ProbeConfig(epochs=epochs, seeds=_integers(seeds, "--seeds")),
            limit=limit,
            device=device,
            dtype=dtype,
            command=shlex.join(["d2v", *sys.argv[1:]]),
            notify=info,
        )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=1))
    else:
        _print_choice(result)


def _integers(option: str, name: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in split_names(option))
    except ValueError:
        raise InputError(f"{name} takes numbers with commas between them, not {option!r}.") from None


def _print_choice(result: Choice) -> None:
    task = result.task
    sizes = f"{len(task.train):,} training, {len(task.valid):,} validation and {len(task.test):,} test examples"
    typer.echo(f"{task.name}: {task.kind}, {sizes}")
    _print_layers(result)
    if result.is_quick:
        _print_cosines(result)
        typer.echo(result.verdict())
        return
    columns = ("", f"validation {task.metric}", f"test {task.metric}", "seeds", *result.winner.groups, "parameters")
    table(columns, map(_row, result.probes), "best on validation data first")
    table(columns, map(_row, result.controls), "controls")
    for probe in result.probes:
        if len(probe.inputs) > 1 and probe.weights:
            _print_weights(probe)
    _print_cosines(result)
    if (agreement := result.agreement()) is not None:
        typer.echo(f"Spearman of LogME with validation scores over {len(result.layers)} layers: {agreement:.2f}")
    typer.echo(result.verdict())


def _print_cosines(result: Choice) -> None:
    cosines = ", ".join(f"{name} {value:.2f}" for name, value in result.cosines.items())
    typer.echo(f"cosine to {result.target}: {cosines}")


def _print_layers(result: Choice) -> None:
    """Print the best layer of each source, beside its last one; in quick mode the best layers of all."""
    if result.is_quick:
        ranked = sorted(result.layers, key=lambda row: -row.logme)[:_MAX_LAYERS]
        rows = [(row.source, str(row.reading.layer), row.reading.pooling, f"{row.logme:.4f}") for row in ranked]
        rows += [(name, "mean", "", f"{average:.4f}") for name, average in result.averages.items()]
        table(("source", "layer", "pooling", "LogME"), rows, f"best of {len(result.layers)} layers, by LogME")
        return
    lines = []
    for name in result.sources:
        best = result.best_layer(name)
        last = [row for row in result.layers if (row.source, row.reading.pooling) == (name, best.reading.pooling)][-1]
        for row in (best, last):
            lines.append(
                (name, str(row.reading.layer), row.reading.pooling, *(f"{x:.1f}" for x in (row.valid, row.test)))
            )
    metric = result.task.metric
    title = "best layer of each source on validation data, and its last one"
    table(("source", "layer", "pooling", f"validation {metric}", f"test {metric}"), lines, title)


def _row(probe: Probe) -> tuple[str, ...]:
    seeds = ", ".join(f"{run.test:.1f}" for run in probe.runs)
    groups = (f"{score:.1f}" for score in probe.groups.values())
    parameters = probe.runs[0].aggregator_parameters + probe.runs[0].head_parameters
    return probe.name, f"{probe.valid:.1f}", f"{probe.test:.1f}", seeds, *groups, f"{parameters:,}"


def _print_weights(probe: Probe) -> None:
    """Print the weights before training, after the first epochs and at the end."""
    last = len(probe.weights) - 1
    epochs = sorted({0, 1, min(2, last), min(5, last), min(10, last), last})
    rows = [(str(epoch), *(f"{weight:.2f}" for weight in probe.weights[epoch])) for epoch in epochs]
    typer.echo(f"source weights by epoch, {probe.name}")
    table(("epoch", *(source for source, _ in probe.inputs)), rows)
