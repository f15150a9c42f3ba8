"""`d2v similarity`: how alike are two texts?"""

from __future__ import annotations

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
from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.heads.layerwise import Explanation


def similarity(
    a: Annotated[str, typer.Argument(help="A text.")],
    b: Annotated[str, typer.Argument(help="Another text.")],
    encoder: EncoderOption = "smollm2-135m",
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also print what each layer of it says.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the explanation into this file (.png).")] = None,
) -> None:
    """Print the similarity of two texts."""
    if plot and plot.suffix.lower() != ".png":
        raise InputError(f"{plot} must end in .png: that is what is drawn.")
    model = open_encoder(encoder, device, layer=layer, pooling=pooling, template=template, attention=attention)
    if explain or plot:
        _explain(model.explain(a, b), (a, b), plot)
        return
    vectors = model.encode([a, b])
    typer.echo(f"{float(model.similarity(vectors[:1], vectors[1:])):.4f}")


def _explain(found: Explanation, texts: tuple[str, str], plot: Path | None) -> None:
    rows = [
        (str(reading), f"{cosine:.4f}", f"{contribution:+.4f}")
        for reading, cosine, contribution in zip(found.readings, found.cosines, found.contributions, strict=True)
    ]
    typer.echo(f"{found.similarity:.4f}")
    table(("reading", "cosine", "contribution"), rows)
    typer.echo(f"score between 0 and 1: {found.score:.4f}")
    if plot:
        from decoder2vec.report.analysis_figures import draw_explanation

        draw_explanation(found, plot, texts)
        info(f"wrote {plot}")
