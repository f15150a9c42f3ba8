"""`d2v export`: an encoder in a form that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import Device
from decoder2vec.cli.output import info


def export(
    encoder: Annotated[Path, typer.Argument(help="Saved encoder folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.")],
    form: Annotated[
        str, typer.Option("--format", help="sentence-transformers, peft or transformers.")
    ] = "sentence-transformers",
    device: Device = None,
) -> None:
    """Write an encoder so that it loads without this package, and prove that its vectors stay the same."""
    from decoder2vec.export.formats import export

    info(export(encoder, form, out, device=device))
    typer.echo(str(out))
