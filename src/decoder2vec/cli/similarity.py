"""`d2v similarity`: how alike are two texts?"""

from __future__ import annotations

from typing import Annotated

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


def similarity(
    a: Annotated[str, typer.Argument(help="A text.")],
    b: Annotated[str, typer.Argument(help="Another text.")],
    encoder: EncoderOption = "smollm2-135m",
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Print the similarity of two texts."""
    model = open_encoder(encoder, device, layer=layer, pooling=pooling, template=template, attention=attention)
    vectors = model.encode([a, b])
    typer.echo(f"{float(model.similarity(vectors[:1], vectors[1:])):.4f}")
