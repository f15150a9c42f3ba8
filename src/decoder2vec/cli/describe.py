"""`d2v describe`: describe vectors of any origin in words, through a trained bridge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.bridge import CaptionColumn, Captions, VectorColumn, print_control
from decoder2vec.cli.options import Device, Dtype
from decoder2vec.cli.output import info, show_progress
from decoder2vec.errors import InputError


def describe(
    bridge: Annotated[Path, typer.Argument(help="Folder of a bridge that was trained with --loss lm.")],
    vectors: Annotated[Path, typer.Argument(help="Vectors: .npy, or .parquet with lists of numbers.")],
    row: Annotated[list[int] | None, typer.Option(help="Describe only this row, from 0; may be repeated.")] = None,
    captions: Captions = None,
    column: CaptionColumn = None,
    vector_column: VectorColumn = "embedding",
    max_tokens: Annotated[int, typer.Option(help="Tokens of a description, at most.")] = 64,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per vector.")] = False,
) -> None:
    """Print what each vector says in words; with captions, also how much of it is due to the vector."""
    with show_progress() as progress:
        from decoder2vec.bridge.bridge import Bridge
        from decoder2vec.bridge.control import blind_control
        from decoder2vec.bridge.vectors import CaptionedVectors, check_vectors, read_item_texts, read_vectors

        table, texts = read_vectors(vectors, vector_column), read_item_texts(vectors, captions, column)
        trained = Bridge.from_pretrained(bridge, device=device, dtype=dtype)
        table = check_vectors(table, str(vectors), dim=trained.dim)
        if out_of_range := [each for each in row or () if not 0 <= each < len(table)]:
            raise InputError(f"{vectors} has rows 0 to {len(table) - 1}; there is no row {out_of_range[0]}.")
        rows = list(dict.fromkeys(row or range(len(table))))
        blind = trained.describe(trained.blank[None], max_tokens)[0]
        control = None
        if texts is not None and len(rows) > 1:
            items = CaptionedVectors(table, texts, str(vectors))
            chosen = CaptionedVectors(items.vectors[rows], [texts[each] for each in rows], str(vectors))
            control = blind_control(trained, chosen, max_tokens=max_tokens)
            descriptions = control.texts["real"]
        else:
            with progress.phase("describing", len(rows)):
                descriptions = trained.describe(table[rows], max_tokens)
    for number, text in zip(rows, descriptions, strict=True):
        caption = {} if texts is None else {"caption": texts[number]}
        typer.echo(json.dumps({"row": number, "text": text, **caption}, ensure_ascii=False) if as_json else text)
    info(f"without any vector the bridge says: {blind}")
    if control and as_json:
        typer.echo(json.dumps({"control": control.to_json(), "without_vector": blind}, ensure_ascii=False))
    elif control:
        print_control(control, f"{control.items} items, 95 % intervals")
