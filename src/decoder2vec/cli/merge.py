"""`d2v merge`: average encoders of one base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import split_names
from decoder2vec.cli.output import info
from decoder2vec.errors import InputError


def merge(
    encoders: Annotated[list[Path], typer.Argument(help="Saved encoder folders, two or more, of one base model.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.")],
    weights: Annotated[
        str | None, typer.Option(help="One for each encoder: 0.7,0.3. Scaled to a sum of 1; equal by default.")
    ] = None,
    method: Annotated[str, typer.Option(help="linear, or slerp between two encoders.")] = "linear",
    rank: Annotated[
        int | None, typer.Option(help="Cut the merged LoRA to this rank; by default the sum of all, which is exact.")
    ] = None,
) -> None:
    """Average encoders of one base model: LoRA, soft prompts, prefixes or whole models."""
    from decoder2vec.merging import merge as merge_encoders

    merge_encoders(encoders, out, weights=_numbers(weights), method=method, rank=rank, notify=info)
    typer.echo(str(out))


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(weight) for weight in split_names(text)]
    except ValueError:
        raise InputError(f"--weights takes numbers such as 0.7,0.3, not {text!r}.") from None
