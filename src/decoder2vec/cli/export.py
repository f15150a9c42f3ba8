"""`d2v export`: write an encoder or a reranker in a format that other programs load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import Device
from decoder2vec.cli.output import info, show_progress


def export(
    encoder: Annotated[Path, typer.Argument(help="Saved encoder or reranker folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.")],
    format: Annotated[
        str, typer.Option(help="sentence-transformers, onnx, peft or transformers; of a reranker: cross-encoder.")
    ] = "sentence-transformers",
    dtype: Annotated[
        str | None, typer.Option(help="Of the format onnx: float32, or int8 for a quarter of the size.")
    ] = None,
    device: Device = None,
) -> None:
    """Write an encoder so that it loads without this package, and check that its vectors stay the same."""
    with show_progress():
        from decoder2vec.export.formats import export

        description = export(encoder, format, out, device=device, dtype=dtype)
    info(description)
    typer.echo(str(out))
