"""`d2v calibrate`: turn the scores of an encoder into probabilities, from labelled pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, split_names
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.storage import check_output_file


def calibrate(
    encoder: Annotated[str, typer.Argument(help="Saved encoder, or index; with --out also any model.")],
    data: Annotated[Path, typer.Option(help="Pairs of texts with 1 or 0 as their score (.tsv, .csv, .jsonl).")],
    out: Annotated[
        Path | None, typer.Option(help="Write a copy of the encoder here; by default it is changed in place.")
    ] = None,
    positive_from: Annotated[
        float | None, typer.Option(help="Pairs with this score or more are positive; for more than two scores.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the two texts and the label; by default sentence1,sentence2,label.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file (.png).")] = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Let similarity, search and match print probabilities, fitted on labelled pairs."""
    check_output_file(plot, ".png", sources=[data])
    with show_progress():
        from decoder2vec.calibration import calibrate as calibrate_encoder

        result = calibrate_encoder(
            encoder,
            data,
            out=out,
            positive_from=positive_from,
            columns=split_names(columns) if columns else None,
            device=device,
            dtype=dtype,
        )
    rows = [
        (
            name,
            f"{score.curve.score_at(0.5):.3f}",
            f"{score.quality.auc:.3f}",
            f"{score.quality.brier:.3f}",
            f"{score.quality.base_brier:.3f}",
            f"{100 * score.quality.calibration_error:.0f} %",
        )
        for name, score in result.scores.items()
    ]
    table(("score", "at 50 %", "AUC", "Brier score", "without it", "calibration error"), rows)
    positives = int(result.labels.sum())
    info(f"fitted on {positives} positive and {len(result.labels) - positives} negative pairs; by cross-validation")
    for name in {"similarity", "search", "match"} - result.scores.keys():
        info(f"no probability for {name}: its scores do not rise with the labels")
    if plot:
        from decoder2vec.report.quality_figures import draw_reliability

        draw_reliability(result, plot)
        info(f"wrote {plot}")
    typer.echo(str(result.folder))
