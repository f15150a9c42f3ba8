"""`d2v search`: find the documents of an index that answer a query."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import LEARNED_RERANKER, Device, Dtype, open_search_reranker
from decoder2vec.cli.output import info
from decoder2vec.errors import InputError
from decoder2vec.package import garbage_collection_paused

if TYPE_CHECKING:
    from decoder2vec.search.index import Hit
    from decoder2vec.search.snippets import Snippet


def search(
    index: Annotated[str, typer.Argument(help="Folder, or postgresql://host/database#name.")],
    query: Annotated[str, typer.Argument(help="Text to search for.")],
    top: Annotated[int, typer.Option(help="Maximum number of documents.")] = 5,
    mode: Annotated[str, typer.Option(help="dense (embeddings), lexical (BM25) or hybrid (both).")] = "hybrid",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", "--where", help="key=value required in the metadata; repeat for other keys or further values."
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every vector, even if there is an approximate index.")
    ] = False,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="Rescore the best 30, or as tuned: a reranker, an encoder, likelihood:MODEL, or learned (--tune)."
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="Needed only if the index does not hold its encoder.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per document.")] = False,
) -> None:
    """Search an index and print the best documents, each with its best sentence marked."""
    if not query.strip():
        raise InputError("The query is empty; give a text to search for.")
    required = _parse_filters(filters or [])
    with garbage_collection_paused():
        from decoder2vec.search.index import Index

        for_queries = rerank not in LEARNED_RERANKER
        opened = Index.open(index, encoder or None, device=device, dtype=dtype, for_queries=for_queries)
        reranker = open_search_reranker(opened, rerank, device, dtype)
        hits = opened.search(query, top, mode, required, reranker, exact=exact)
    for hit in hits:
        typer.echo(_to_json(hit)) if as_json else _print(hit)
    if not hits:
        info("nothing found")


def _parse_filters(assignments: list[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"{assignment!r} is not of the form key=value.")
        values.setdefault(key, []).append(value)
    return values


def _to_json(hit: Hit) -> str:
    parts = {} if hit.dense is None else {"dense": hit.dense, "lexical": hit.lexical}
    fields = {"chunk": hit.chunk, "text": hit.text, "metadata": hit.metadata}
    snippet = {"text": hit.snippet.text, "start": hit.snippet.start, "end": hit.snippet.end}
    probability = {} if hit.probability is None else {"probability": hit.probability._asdict()}
    document = {"id": hit.id, "score": hit.score, **probability, **parts, **fields, "snippet": snippet}
    return json.dumps(document, ensure_ascii=False)


def _print(hit: Hit) -> None:
    before, after = typer.style("|", bold=True).split("|") if sys.stdout.isatty() else ("«", "»")
    title = str(hit.metadata.get("title") or hit.metadata.get("subject") or "")
    path = str(hit.metadata.get("path", ""))
    names = dict.fromkeys(name for name in (title, hit.id, "" if hit.id.startswith(path) else path) if name)
    snippet = _without_title(hit.snippet, title)
    probability = f" · {hit.probability}" if hit.probability else ""
    typer.echo(f"{hit.score:8.4f}  {_printable(' · '.join(names))}{probability}")
    typer.echo(f"          {snippet.marked(before, after, _printable)}\n")


def _without_title(snippet: Snippet, title: str) -> Snippet:
    """Cut the title off the start of an excerpt, unless it is the best sentence: it is printed above."""
    rest = snippet.text.removeprefix(title)
    if rest == snippet.text or not rest[:1].isspace() or snippet.start < len(title):
        return snippet
    text = rest.lstrip()
    cut = len(snippet.text) - len(text)
    return replace(snippet, text=text, start=snippet.start - cut, end=snippet.end - cut)


def _printable(text: str) -> str:
    """Replace line breaks and control characters, which a terminal would execute, by spaces."""
    return "".join(character if character.isprintable() else " " for character in text)
