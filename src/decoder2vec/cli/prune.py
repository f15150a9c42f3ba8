"""`d2v prune`: remove the upper layers that an encoder does not need from a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype
from decoder2vec.cli.output import info, show_progress, table

if TYPE_CHECKING:
    from decoder2vec.analysis.pruning import LossCurve


def prune(
    model: Annotated[str, typer.Argument(help="Built-in name, model folder, .gguf file, hub id, or an encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the cut model; for the curve alone if nothing is to be kept.")],
    triplets: Annotated[
        Path | None, typer.Option(help="Columns anchor, positive, negative: measure the loss curve.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="A share of the layers (70%), or small or large by the curve.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Keep this many layers.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curve to curve.png.")] = False,
    samples: Annotated[int, typer.Option(help="Triplets sampled for the curve.")] = 1280,
    batch: Annotated[int, typer.Option(help="Triplets in a batch, contrasted with each other.")] = 64,
    scale: Annotated[float, typer.Option(help="Factor of the cosines (1 / temperature).")] = 50.0,
    pooling: Annotated[str, typer.Option(help="For the curve: weightedmean, mean, lasttoken, ...")] = "weightedmean",
    template: Annotated[str, typer.Option(help="For the curve: a name, or any string with {text}.")] = "plain",
    seed: Annotated[int, typer.Option(help="Seed of the sample of triplets.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Remove a model's upper layers: as many as you choose, or as the loss of every layer on triplets suggests."""
    from decoder2vec.analysis.pruning import prune as prune_model
    from decoder2vec.errors import InputError

    if plot and not triplets:
        raise InputError("There is no curve to draw without triplets; give --triplets FILE.")
    with show_progress():
        result = prune_model(
            model,
            out,
            keep=keep,
            layers=layers,
            triplets=triplets,
            samples=samples,
            batch=batch,
            scale=scale,
            pooling=pooling,
            template=template,
            seed=seed,
            device=device,
            dtype=dtype,
            notify=info,
        )
    if result.curve:
        _print_curve(result.curve)
    if result.cut:
        info(f"kept {result.cut}")
    if result.curve and plot:
        from decoder2vec.report.analysis_figures import draw_loss_curve

        draw_loss_curve(result.curve, out / "curve.png")
    typer.echo(str(out))


def _print_curve(curve: LossCurve) -> None:
    minima, all_parameters = curve.minima, curve.parameters[-1]
    marks = {minima.large: "large", minima.small: "small"}
    rows = [
        (
            str(layer),
            f"{loss:.4f}",
            f"{error:.4f}",
            f"{parameters:,}",
            f"{parameters / all_parameters:.1%}",
            marks.get(layer, ""),
        )
        for layer, (loss, error, parameters) in enumerate(
            zip(curve.losses, curve.errors, curve.parameters, strict=True), 1
        )
    ]
    title = f"{curve.model} on {curve.data}: {len(curve.by_batch)} batches of {curve.batch} triplets"
    table(("layers", "loss", "+-", "parameters", "share", ""), rows, title)
    for remark in minima.remarks():
        typer.echo(remark)
