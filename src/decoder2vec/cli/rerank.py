"""`d2v rerank`: sort documents by how well they answer a query, or rerank a whole run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, refuse_given
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.reranker import Reranker


def rerank(
    context: typer.Context,
    reranker: Annotated[
        str, typer.Argument(help="smollm2-135m-reranker, the folder of a reranker, or any model, see --method.")
    ],
    query: Annotated[str | None, typer.Option(help="The query.")] = None,
    documents: Annotated[
        Path | None, typer.Option(help="Documents to sort: a text per line, or a column text of .tsv, .csv or .jsonl.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="TREC run to rerank, instead of one query.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --run: folder with corpus.jsonl and queries.jsonl (BEIR's layout).")
    ] = None,
    qrels: Annotated[Path | None, typer.Option(help="With --run: judgements (TREC's or BEIR's) to measure by.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --run: file for the reranked run.")] = None,
    depth: Annotated[int, typer.Option(help="With --run: documents of each query to rescore.")] = 100,
    top: Annotated[int, typer.Option(help="With --query: maximum number of documents to print.")] = 10,
    method: Annotated[str | None, typer.Option(help="Of an untrained model: likelihood (default) or yes_no.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Of an untrained model: tokens of a pair.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per document.")] = False,
) -> None:
    """Score documents together with a query and print them best first, or rerank a TREC run."""
    if (run is None) == (query is None):
        raise InputError("Give --query and --documents, or --run and --data.")

    def load() -> Reranker:
        from decoder2vec.reranker import Reranker

        return Reranker.from_pretrained(reranker, method=method, max_length=max_length, device=device, dtype=dtype)

    if run is None:
        refuse_given(context, ["data", "qrels", "out", "depth"], "--run")
        _sort_documents(load, query or "", documents, top, as_json=as_json)
        return
    refuse_given(context, ["documents", "top", "as_json"], "--query")
    if data is None:
        raise InputError("--run needs the texts: give --data, a folder with corpus.jsonl and queries.jsonl.")
    if out is None and qrels is None:
        raise InputError(
            "Nothing would come of --run: give --out, a file for the reranked run, or --qrels to measure it."
        )
    check_output_file(out, sources=[run, qrels])
    with show_progress():
        _rerank_run(load, run, data, qrels, out, depth)


def _sort_documents(
    load: Callable[[], Reranker], query: str, documents: Path | None, top: int, *, as_json: bool
) -> None:
    from decoder2vec.text.files import TEXT_COLUMN_HINT, read_texts

    if documents is None or not query.strip():
        raise InputError("Give a --query that is not empty, and --documents, a file.")
    if top < 1:
        raise InputError(f"--top is {top}; print 1 document or more.")
    texts = list(read_texts(documents, hint=TEXT_COLUMN_HINT))
    filled = [index for index, text in enumerate(texts) if text.strip()]
    if len(filled) < len(texts):
        info(f"{len(texts) - len(filled)} of {len(texts)} documents are empty and left out")
    if not filled:
        raise DataFileError(f"{documents} holds no text.")
    for hit in load().rank(query, [texts[index] for index in filled], top_k=top, return_documents=True):
        if as_json:
            line = {"index": filled[hit["corpus_id"]], "score": hit["score"], "text": hit["text"]}
            typer.echo(json.dumps(line, ensure_ascii=False))
        else:
            typer.echo(f"{hit['score']:8.4f}  {' '.join(hit['text'].split())}")


def _rerank_run(
    load: Callable[[], Reranker], run: Path, data: Path, qrels: Path | None, out: Path | None, depth: int
) -> None:
    from decoder2vec.evaluation.tasks.retrieval import read_beir_texts
    from decoder2vec.evaluation.trec_files import evaluate_run, read_run, rerank_run, write_run
    from decoder2vec.text.qrels import read_qrels

    before, judgements = read_run(run), read_qrels(qrels, whole=True) if qrels else {}
    queries, documents = read_beir_texts(data)
    after = rerank_run(load(), before, queries, documents, depth)
    if judgements:
        scores = [evaluate_run(each, judgements) for each in (before, after)]
        rows = [(name, f"{scores[0][name]:.2f}", f"{scores[1][name]:.2f}") for name in scores[0]]
        table(("measure", "run", "reranked"), rows, f"top {depth} of {len(before)} queries")
    if out:
        write_run(after, out, "decoder2vec")
        info(f"wrote the run {out}")
