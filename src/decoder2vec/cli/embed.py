"""`d2v embed`: encode texts from a file or stdin to a file of vectors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderOption,
    Exact,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
)
from decoder2vec.cli.output import info, show_progress
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.storage import check_output_file


def embed(
    source: Annotated[str, typer.Argument(metavar="FILE", help="txt, jsonl, csv or tsv file; - for stdin.")],
    out: Annotated[Path, typer.Option(help="Output file: .npy, .jsonl or .parquet.")],
    column: Annotated[str | None, typer.Option(help="Column or field that holds the text.")] = None,
    encoder: EncoderOption = DEFAULT_ENCODER,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    exact: Exact = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Encode a file of texts; the same command resumes an interrupted run."""
    check_output_file(out, sources=[source])
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    with show_progress() as progress:
        from decoder2vec.bulk import embed_texts, get_writer
        from decoder2vec.text.files import naming_lines, read_texts

        get_writer(out)  # an unknown suffix is refused before the work
        with progress.phase("reading"):  # a file is read twice, so that the time left is known; a pipe cannot be
            n_texts = _count_texts(source, read_texts(source, column)) if Path(source).is_file() else None
        progress.expect("loading the model")
        progress.expect("encoding", n_texts)
        progress.expect("saving")
        model = open_encoder(encoder, device, dtype, exact=exact, **choices)
        with naming_lines(source):
            count = embed_texts(model, read_texts(source, column), out, normalize=normalize, n_texts=n_texts)
    info(f"wrote {count} vectors of dimension {model.dim} to {out}")


def _count_texts(source: str, texts: Iterable[str]) -> int:
    """The number of texts of a file; warns of empty ones, which keep their rows."""
    count = n_empty = 0
    for text in texts:
        count += 1
        n_empty += not text.strip()
    if not count:
        info(f"warning: {source} holds no text")
    elif n_empty:
        info(f"warning: {n_empty:,} of {count:,} texts are empty; their vectors say nothing")
    return count
