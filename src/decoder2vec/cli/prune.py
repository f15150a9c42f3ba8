"""`d2v prune`: remove from a model what an encoder does not need: upper layers, or tokens that texts do not use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, refuse_given
from decoder2vec.cli.output import info, show_progress, table

if TYPE_CHECKING:
    from decoder2vec.analysis.pruning import LossCurve

_OF_CURVE = ["plot", "samples", "batch", "scale", "pooling", "seed"]
"""Parameters that only the loss curve uses."""


def prune(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Built-in name, model folder, .gguf file, hub id, or an encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the cut model; for the curve alone if nothing is to be kept.")],
    triplets: Annotated[
        Path | None, typer.Option(help="Columns anchor, positive, negative: measure the loss curve.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="A share of the layers (70%), or small or large by the curve.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Keep this many layers.")] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="Texts: keep only the tokens that they use, instead of cutting layers.")
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(help="Keep at most this many of these tokens, the most frequent ones.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Other texts: count how many of them get smaller pieces.")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curve to curve.png.")] = False,
    samples: Annotated[int, typer.Option(help="Triplets sampled for the curve.")] = 1280,
    batch: Annotated[int, typer.Option(help="Triplets in a batch, contrasted with each other.")] = 64,
    scale: Annotated[float, typer.Option(help="Factor of the cosines (1 / temperature).")] = 50.0,
    pooling: Annotated[str, typer.Option(help="For the curve: weightedmean, mean, lasttoken, ...")] = "weightedmean",
    template: Annotated[
        str | None, typer.Option(help="In which texts are read: a name, or any string with {text}; plain by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample of triplets.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Remove upper layers, as many as you choose or as the loss of every layer suggests, or tokens that texts lack."""
    from decoder2vec.analysis.pruning import prune as prune_model
    from decoder2vec.errors import InputError

    if vocabulary is not None:
        if keep or layers or triplets:
            raise InputError("Prune layers and vocabulary one after the other: give --vocabulary alone.")
        refuse_given(context, _OF_CURVE, "the curve of --triplets")
        _prune_vocabulary(model, out, vocabulary, vocabulary_size, held_out, template, device, dtype)
        return
    if vocabulary_size is not None or held_out is not None:
        raise InputError("--vocabulary-size and --held-out are for --vocabulary FILE; give the texts, too.")
    if plot and not triplets:
        raise InputError("There is no curve to draw without triplets; give --triplets FILE.")
    if not triplets:
        refuse_given(context, _OF_CURVE, "the curve of --triplets")
    with show_progress(keeps_work=triplets is not None):
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
            template=template or "plain",
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


def _prune_vocabulary(
    model: str,
    out: Path,
    texts: Path,
    size: int | None,
    held_out: Path | None,
    template: str | None,
    device: str | None,
    dtype: str | None,
) -> None:
    from decoder2vec.analysis.vocabulary import prune_vocabulary

    with show_progress():
        result = prune_vocabulary(
            model,
            out,
            texts,
            size=size,
            held_out=held_out,
            template=template,
            device=device,
            dtype=dtype,
            notify=info,
        )
    info(f"kept {result.summary}")
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
