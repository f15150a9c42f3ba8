"""`d2v prune`: a model without the upper layers that an encoder does not need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import Device
from decoder2vec.cli.output import bars, info, table
from decoder2vec.errors import InputError
from decoder2vec.storage import write_json

if TYPE_CHECKING:
    from decoder2vec.analysis.pruning import CurvePlan, LossCurve
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.text.files import Triplets


def prune(
    model: Annotated[str, typer.Argument(help="Built-in name, model folder, .gguf file, hub id, or an encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the cut model; for the curve alone if nothing is to be kept.")],
    triples: Annotated[
        Path | None, typer.Option(help="Columns anchor, positive, negative: draw the loss curve.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="A share of the layers (70%), or small or large by the curve.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Keep this many layers.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curve to curve.png.")] = False,
    samples: Annotated[int, typer.Option(help="Triples drawn for the curve.")] = 1280,
    batch: Annotated[int, typer.Option(help="Triples that are told apart from each other.")] = 64,
    scale: Annotated[float, typer.Option(help="Cosines are multiplied by it.")] = 50.0,
    pooling: Annotated[str, typer.Option(help="Of the curve: weightedmean, mean, lasttoken, ...")] = "weightedmean",
    template: Annotated[str, typer.Option(help="Of the curve: a name, or any string with {text}.")] = "plain",
    seed: Annotated[int, typer.Option(help="Which triples are drawn.")] = 0,
    device: Device = None,
) -> None:
    """Cut off a model's upper layers: how many, you say, or the loss of every layer on triples does."""
    from decoder2vec.analysis.pruning import FROM_A_CURVE, CurvePlan, choose_depth
    from decoder2vec.export.base_model import load_base_model
    from decoder2vec.text.files import read_triplets

    choice = _choice(keep, layers, curve=triples is not None, out=out)
    if plot and not triples:
        raise InputError("There is no curve to draw without triples; give --triples FILE.")
    plan = CurvePlan(samples, batch, scale, pooling, template, seed=seed)
    rows = read_triplets(triples) if triples else None
    backbone, _ = load_base_model(model, device=device, notify=info)
    depth = None if choice is None or choice in FROM_A_CURVE else choose_depth(choice, backbone.n_layers)
    curve = _measure(backbone, rows, plan) if rows else None
    if curve and choice in FROM_A_CURVE:
        depth = choose_depth(str(choice), backbone.n_layers, curve.minima)
    _write(backbone, depth, out, curve, {"model": model, "weights": backbone.identity, "asked": choice})
    if curve and plot:
        from decoder2vec.report.analysis_figures import draw_curve

        draw_curve(curve, out / "curve.png")
    typer.echo(str(out))


def _choice(keep: str | None, layers: int | None, *, curve: bool, out: Path) -> str | int | None:
    """What to keep, checked as far as it can be before the model is there."""
    from decoder2vec.analysis.pruning import check_choice
    from decoder2vec.export.pruned import check_new_folder

    if keep is not None and layers is not None:
        raise InputError("Give --keep or --layers, not both.")
    choice = keep if keep is not None else layers
    if choice is None:
        if not curve:
            raise InputError("Say what to keep (--keep 70%, --layers 12), or give --triples FILE to find out.")
        if (out / "config.json").exists():
            raise InputError(f"{out} holds a model; choose another folder for the curve.")
        return None
    check_choice(choice, curve=curve)
    check_new_folder(out)
    return choice


def _measure(backbone: Backbone, rows: Triplets, plan: CurvePlan) -> LossCurve:
    from decoder2vec.analysis.pruning import loss_curve

    if rows.left_out:
        info(f"{rows.left_out} rows without three different texts were left out")
    with bars() as progress:
        task = progress.add_task("reading all layers", total=len(rows.drawn(plan.samples, plan.seed).texts()))
        curve = loss_curve(backbone, rows, plan, progress=lambda count: progress.advance(task, count))
    if curve.batch < plan.batch:
        info(f"there are {curve.batch} triples only; losses are lower than those of batches of {plan.batch}")
    _print_curve(curve)
    return curve


def _print_curve(curve: LossCurve) -> None:
    minima, whole = curve.minima, curve.parameters[-1]
    marks = {minima.large: "large", minima.small: "small"}
    rows = [
        (
            str(layer),
            f"{loss:.4f}",
            f"{error:.4f}",
            f"{parameters:,}",
            f"{parameters / whole:.1%}",
            marks.get(layer, ""),
        )
        for layer, (loss, error, parameters) in enumerate(
            zip(curve.losses, curve.errors, curve.parameters, strict=True), 1
        )
    ]
    title = f"{curve.model} on {curve.data}: {len(curve.by_batch)} batches of {curve.batch} triples"
    table(("layers", "loss", "+-", "parameters", "share", ""), rows, title)
    for remark in minima.remarks():
        typer.echo(remark)


def _write(backbone: Backbone, depth: int | None, out: Path, curve: LossCurve | None, note: dict[str, Any]) -> None:
    """The cut model, or the curve alone; either with a note of how it came about."""
    from decoder2vec.export.pruned import PRUNING_FILE, write_pruned
    from decoder2vec.storage import versions

    note |= {"versions": versions()}
    if curve:
        note["curve"] = {**curve.to_json(), "model": note["model"]}
    if depth is not None:
        info(f"kept {write_pruned(backbone, depth, out, note)}")
        return
    write_json(out / PRUNING_FILE, note)
