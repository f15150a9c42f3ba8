"""`d2v search`: the documents of an index that answer a query."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, open_encoder
from decoder2vec.cli.output import info
from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.search.index import Hit, Index
    from decoder2vec.search.rerank import Reranker


def search(
    index: Annotated[str, typer.Argument(help="Folder, or postgresql://host/database#name.")],
    query: Annotated[str, typer.Argument(help="What is looked for.")],
    top: Annotated[int, typer.Option(help="How many documents.")] = 5,
    mode: Annotated[str, typer.Option(help="dense (meaning), lexical (words) or hybrid (both).")] = "hybrid",
    where: Annotated[
        list[str] | None,
        typer.Option("--filter", help="key=value that the metadata must say; may be repeated: another key narrows."),
    ] = None,
    rerank: Annotated[
        str | None, typer.Option(help="Trained encoder that scores the best 30 once more; own: as tuned.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="Only where the index does not bring its own.")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each document.")] = False,
) -> None:
    """Search an index and print the best documents, each with its best sentence marked."""
    from decoder2vec.search.index import Index

    if not query.strip():
        raise InputError("Say what to search for: the query is empty.")
    opened = Index.open(index, open_encoder(encoder, device) if encoder else None)
    hits = opened.search(query, top, mode, _filter(where or []), _reranker(opened, rerank, device))
    for hit in hits:
        typer.echo(_line(hit)) if as_json else _print(hit)
    if not hits:
        info("nothing found")


def _reranker(opened: Index, name: str | None, device: str | None) -> Reranker | None:
    from decoder2vec.search.rerank import PairHead, PairReranker

    if name == "own":
        return PairHead.load(opened.pair_head, opened.encoder)
    return PairReranker(open_encoder(name, device)) if name else None


def _filter(assignments: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"{assignment!r} is not of the form key=value.")
        found.setdefault(key, []).append(value)
    return found


def _line(hit: Hit) -> str:
    said = {"id": hit.id, "score": hit.score, "chunk": hit.chunk, "text": hit.text, "metadata": hit.metadata}
    snippet = {"text": hit.snippet.text, "start": hit.snippet.start, "end": hit.snippet.end}
    return json.dumps({**said, "snippet": snippet}, ensure_ascii=False)


def _print(hit: Hit) -> None:
    before, after = typer.style("|", bold=True).split("|") if sys.stdout.isatty() else ("«", "»")
    typer.echo(f"{hit.score:8.4f}  {_one_line(hit.id)}")
    typer.echo(f"          {hit.snippet.marked(before, after, _one_line)}\n")


def _one_line(text: str) -> str:
    """Nothing in it breaks the line, and nothing is a sign that a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
