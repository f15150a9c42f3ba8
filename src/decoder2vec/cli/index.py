"""`d2v index`: documents of a folder or file into an index."""

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
    split_names,
)
from decoder2vec.cli.output import bars, info
from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.search.index import Changes, Index

_NAMED = 20


def index(
    out: Annotated[str, typer.Option(metavar="INDEX", help="Folder, or postgresql://host/database#name.")],
    source: Annotated[
        Path | None,
        typer.Argument(help="Folder or file: .txt .md .pdf .docx .csv .tsv .jsonl. Without it, the index is verified."),
    ] = None,
    encoder: EncoderOption = "",
    column: Annotated[str, typer.Option(help="Columns that make the text of a row, joined.")] = "text",
    chunk: Annotated[int | None, typer.Option(help="Most tokens of a chunk of a long document; 256.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Tokens that two chunks share; 32.")] = None,
    delete: Annotated[list[str] | None, typer.Option(help="Remove the document with this id; may be repeated.")] = None,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Index documents, so that `d2v search` finds them; if it is stopped, the same command goes on where it was."""
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    opened = _open(out, source, encoder, {**choices, "device": device}, (chunk, overlap))
    if delete:
        gone = opened.delete(delete)
        missing = [id for id in delete if id not in gone]
        info(f"deleted {len(gone)} documents" + (f"; not there: {', '.join(missing)}" if missing else ""))
    if source:
        _add(opened, source, split_names(column))
    opened.verify()
    documents, chunks = opened.count()
    info(f"{out}: {documents} documents in {chunks} chunks, verified")


def _open(
    out: str,
    source: Path | None,
    encoder: str,
    choices: dict[str, object],
    sizes: tuple[int | None, int | None],
) -> Index:
    from decoder2vec.search.chunks import Chunking
    from decoder2vec.search.documents import read_documents
    from decoder2vec.search.index import Index

    if source and not source.exists():
        raise InputError(f"{source} does not exist.")
    if not Index.exists(out):
        if not source:
            raise InputError(f"There is no index at {out}; name the folder or file to make one of.")
        next(read_documents(source), None)  # a source without any document is refused before anything is written
        model = open_encoder(encoder or "smollm2-135m", **choices)  # type: ignore[arg-type]
        usual = Chunking()
        size = sizes[0] or usual.size
        return Index.create(out, model, Chunking(size, min(usual.overlap, size // 4) if sizes[1] is None else sizes[1]))
    if sizes != (None, None):
        raise InputError(f"How {out} cuts documents was settled when it was made; leave out --chunk and --overlap.")
    named = bool(encoder) or any(value is not None for key, value in choices.items() if key != "device")
    return Index.open(out, open_encoder(encoder or "smollm2-135m", **choices) if named else None)  # type: ignore[arg-type]


def _add(opened: Index, source: Path, columns: tuple[str, ...]) -> None:
    from decoder2vec.search.documents import read_documents

    with bars() as progress:
        task = progress.add_task("documents", total=None)

        def show(changes: Changes) -> None:
            progress.update(task, completed=changes.seen)

        changes = opened.add(read_documents(source, columns), show)
    for skipped in changes.skipped[:_NAMED]:
        info(f"left out {skipped.name}: {skipped.reason}")
    if len(changes.skipped) > _NAMED:
        info(f"... and {len(changes.skipped) - _NAMED} more")
    info(
        f"added {changes.added}, updated {changes.updated}, unchanged {changes.unchanged}, "
        f"left out {len(changes.skipped)}"
    )
    if changes.seen == len(changes.skipped):
        raise InputError(f"Nothing of {source} could be indexed.")
