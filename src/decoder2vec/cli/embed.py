"""`d2v embed`: encode texts from a file or stdin to a file of vectors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

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
from decoder2vec.cli.output import info, labelled_bars
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
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Encode a file of texts; the same command resumes an interrupted run."""
    from decoder2vec.bulk import embed_texts, get_writer
    from decoder2vec.text.files import read_texts

    check_output_file(out, sources=[source])
    get_writer(out)
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    model = open_encoder(encoder, device, dtype, **choices)
    texts = iter(read_texts(source, column))
    first = list(itertools.islice(texts, 1))  # an unreadable file raises here, before a bar is shown
    with labelled_bars() as advance:
        advance("texts", 0, None)
        count = embed_texts(
            model,
            itertools.chain(first, texts),
            out,
            normalize=normalize,
            progress=lambda n_texts: advance("texts", n_texts, None),
        )
    info(f"wrote {count} vectors of dimension {model.dim} to {out}")
