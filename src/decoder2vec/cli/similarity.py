"""`d2v similarity`: print the similarity of two texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderOption,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
)
from decoder2vec.cli.output import info, table
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError
from decoder2vec.package import garbage_collection_paused

if TYPE_CHECKING:
    from decoder2vec.heads.layerwise import Explanation


def similarity(
    a: Annotated[str, typer.Argument(help="A text.")],
    b: Annotated[str, typer.Argument(help="Another text.")],
    encoder: EncoderOption = DEFAULT_ENCODER,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also print the contribution of each layer.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the explanation into this file (.png).")] = None,
) -> None:
    """Print the similarity of two texts."""
    if plot and plot.suffix.lower() != ".png":
        raise InputError(f"{plot} must end in .png, the format of the figure.")
    if not (a.strip() and b.strip()):
        info("warning: a text is empty; its similarity says nothing")
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    if explain or plot:
        _print_explanation(open_encoder(encoder, device, dtype, **choices).explain(a, b), (a, b), plot)
        return
    with garbage_collection_paused():
        from decoder2vec.quick_encoder import open_for_queries

        model = open_for_queries(encoder, device, dtype, **choices)
    vectors = model.encode([a, b])
    score = float(model.similarity(vectors[:1], vectors[1:])[0, 0])
    typer.echo(f"{score:.4f}")
    if curve := model.probabilities.get("similarity"):
        typer.echo(f"probability: {curve(score)}")


def _print_explanation(explanation: Explanation, texts: tuple[str, str], plot: Path | None) -> None:
    rows = [
        (str(reading), f"{cosine:.4f}", f"{contribution:+.4f}")
        for reading, cosine, contribution in zip(
            explanation.readings, explanation.cosines, explanation.contributions, strict=True
        )
    ]
    typer.echo(f"{explanation.similarity:.4f}")
    table(("reading", "cosine", "contribution"), rows)
    typer.echo(f"score between 0 and 1: {explanation.score:.4f}")
    if plot:
        from decoder2vec.report.analysis_figures import draw_explanation

        draw_explanation(explanation, plot, texts)
        info(f"wrote {plot}")
