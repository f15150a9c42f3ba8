"""`d2v data`: check data files, mine hard negatives and list the concepts of a domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, refuse_given
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.text.data_check import FileCheck, Overlap
    from decoder2vec.training.contrastive_examples import ContrastiveExamples

_MAX_CLASSES = 10

data = typer.Typer(name="data", help="Check and prepare data files.", no_args_is_help=True)


@data.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Pairs, triplets, labelled texts, records or plain texts.")],
    against: Annotated[
        list[Path] | None, typer.Option(help="Evaluation file to compare with; may be repeated.")
    ] = None,
) -> None:
    """Show the kind, size and problems of a data file, and its overlap with evaluation files."""
    from decoder2vec.text.data_check import check_file, measure_overlap
    from decoder2vec.text.files import read_data_file

    data_file = read_data_file(file)
    rows = _rows(check_file(data_file))
    rows += [
        (f"also in {other.name}", _describe_overlap(measure_overlap(data_file, read_data_file(other))))
        for other in against or []
    ]
    table(("property", "value"), rows, str(file))


@data.command("mine")
def mine(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="Pairs, triplets, labelled texts or records; or a folder in BEIR's layout.")
    ],
    out: Annotated[Path, typer.Option(help="Output file (.jsonl).")],
    encoder: Annotated[
        str | None, typer.Option(help="What measures similarity: a saved encoder, a model, or bm25.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Index to draw negatives from, instead of the file.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Texts to draw negatives from, instead of the file's.")] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Draw uniformly from this many of the nearest; else 100 with bm25, index, corpus or folder."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    split: Annotated[str, typer.Option(help="Queries of a folder: dev, test or all.")] = "all",
    count: Annotated[int, typer.Option(help="Negatives for each example.")] = 3,
    margin: Annotated[
        float, typer.Option(help="Maximum similarity to the anchor, as a share of the positive's.")
    ] = 0.95,
    skip: Annotated[int, typer.Option(help="Skip this many of the nearest texts.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Mine hard negatives: texts near an anchor that are not among its positives.

    By default they are the nearest texts of the file below a margin. With --top they are drawn at random from the best,
    as rerankers are trained.
    """
    if (encoder is None) == (index is None):
        raise InputError("Give --encoder (an encoder, a model or bm25), or --index.")
    nearest = index is None and encoder != "bm25" and not (top or corpus or file.is_dir())
    _refuse_ignored(context, nearest=nearest)
    check_output_file(out, ".jsonl", sources=[file, corpus])
    with show_progress() as progress:
        from decoder2vec.storage import atomic_file
        from decoder2vec.training.mining import (
            bm25_ranker,
            draw_negatives,
            encoder_ranker,
            index_ranker,
            mine_hard_negatives,
            to_jsonl,
        )

        with progress.phase("reading"):
            examples, documents = _examples_and_documents(file, corpus, split)
        if index is None and encoder != "bm25":
            progress.expect("loading the model")
            progress.expect("encoding", len(examples.texts if nearest else documents))
        for phase in ("mining negatives", "saving"):
            progress.expect(phase)
        if index is not None:
            from decoder2vec.search.index import Index

            rank = index_ranker(Index.open(index, device=device, dtype=dtype))
        elif encoder == "bm25":
            rank = bm25_ranker(documents)
        else:
            from decoder2vec.encoder import Encoder

            model = Encoder.from_pretrained(encoder or "", device=device, dtype=dtype)
            rank = encoder_ranker(model, documents)  # which encodes nothing before it ranks
        if nearest:
            rows = mine_hard_negatives(model, examples, count=count, margin=margin, skip=skip)
        else:
            rows = draw_negatives(rank, examples, count=count, top=top or 100, seed=seed)
        with progress.phase("saving"), atomic_file(out) as temporary:
            temporary.write_text(to_jsonl(rows), encoding="utf-8")
    n_negatives = sum(len(row) - 2 for row in rows)
    n_without = sum(len(row) == 2 for row in rows)
    info(f"{n_negatives:,} negatives for {len(rows):,} examples ({n_without:,} have none): {out}")


def _refuse_ignored(context: typer.Context, *, nearest: bool) -> None:
    """Refuse options of other ways to mine; a margin that is ignored would let false negatives in."""
    if nearest:
        refuse_given(context, ["seed"], "--top, which draws")
    else:
        refuse_given(context, ["margin", "skip"], "mining the nearest texts of a file by an encoder")
    if context.params["index"] is not None:
        refuse_given(context, ["corpus"], "--encoder")
    if not context.params["file"].is_dir():
        refuse_given(context, ["split"], "a folder in BEIR's layout")


def _examples_and_documents(file: Path, corpus: Path | None, split: str) -> tuple[ContrastiveExamples, list[str]]:
    """Queries with their positives, and the texts that negatives are drawn from."""
    from decoder2vec.evaluation.tasks.retrieval import read_beir
    from decoder2vec.text.files import TEXT_COLUMN_HINT, read_texts
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example, read_contrastive_examples

    if file.is_dir():
        beir = read_beir(file, split)
        pairs = [(query, document) for query, gains in beir.relevant.items() for document in gains]
        known = [pair for pair in pairs if pair[1] in beir.documents]
        found = [Example(beir.queries[query], beir.documents[document], (), query) for query, document in known]
        examples, documents = ContrastiveExamples.of(found, tuple(beir.flags), str(file)), list(beir.documents.values())
    else:
        examples = read_contrastive_examples(file)
        indices = [*examples.positives.tolist(), *examples.negatives.ravel().tolist()]
        documents = [examples.texts[text] for text in dict.fromkeys(indices) if text >= 0]
    for note in examples.notes:
        info(note)
    return examples, list(read_texts(corpus, hint=TEXT_COLUMN_HINT)) if corpus else documents


@data.command("concepts")
def concepts(
    domain: Annotated[Path, typer.Argument(help="Texts of the domain.")],
    general: Annotated[Path, typer.Option(help="General texts, such as the model was trained on.")],
    out: Annotated[Path, typer.Option(help="Output file, one concept per line (.txt).")],
    top: Annotated[
        int, typer.Option(help="Keep this many, ranked by how much more frequent they are in the domain.")
    ] = 2000,
    least: Annotated[int, typer.Option(help="Minimum number of occurrences in the domain.")] = 5,
    graph: Annotated[
        Path | None, typer.Option(help="Edges between concepts: use seed concepts and their neighbours.")
    ] = None,
    frequency: Annotated[float, typer.Option(help="With a graph: occurrences per million words of a seed.")] = 100,
    seeds: Annotated[int, typer.Option(help="With a graph: number of seeds.")] = 5000,
    hops: Annotated[int, typer.Option(help="With a graph: maximum distance from a seed, in edges.")] = 5,
) -> None:
    """List the concepts of a domain, frequent there and rare elsewhere, to mask them in training."""
    from decoder2vec.text.concepts import ConceptGraph, ConceptSet, Frequency
    from decoder2vec.text.files import TEXT_COLUMN_HINT, read_texts

    check_output_file(out, sources=[domain, general, graph])
    texts, others = (read_texts(file, hint=TEXT_COLUMN_HINT) for file in (domain, general))
    if graph:
        seed_frequency = Frequency(per_million=frequency)
        edges = ConceptGraph.read(graph)
        result = ConceptSet.from_graph(texts, others, edges, frequency=seed_frequency, seeds=seeds, hops=hops)
    else:
        result = ConceptSet.from_log_ratio(texts, others, top=top, min_count=least)
    result.write(out)
    table(
        ("property", "value"),
        [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in result.notes.items()],
    )
    info(f"{len(result):,} concepts: {out}")


def _rows(result: FileCheck) -> list[tuple[str, str]]:
    from decoder2vec.training.data import guess_scale

    shortest, median, percentile_95, longest = result.characters
    rows = [
        ("kind", result.kind),
        ("columns", ", ".join(result.columns)),
        ("rows", f"{result.rows:,}"),
        ("texts", f"{result.texts:,}, {result.unique_texts:,} different"),
        ("characters", f"min {shortest:,}, median {median:,}, 95 % {percentile_95:,}, max {longest:,}"),
        ("empty rows", f"{result.empty:,}"),
        ("duplicate rows", f"{result.duplicates:,}"),
    ]
    if result.scores:
        low, high = guess_scale(*result.scores)
        rows.append(("scale", f"{low:g} to {high:g}, scores from {result.scores[0]:g} to {result.scores[1]:g}"))
    if result.classes:
        rows.append(("classes", _classes(result.classes)))
    return rows


def _classes(classes: dict[str, int]) -> str:
    shown = [f"{label} {count:,}" for label, count in list(classes.items())[:_MAX_CLASSES]]
    if more := len(classes) - len(shown):
        shown.append(f"{more:,} more down to {min(classes.values()):,}")
    return f"{len(classes):,}: {', '.join(shown)}"


def _describe_overlap(overlap: Overlap) -> str:
    texts = f"{overlap.shared_texts:,} of its {overlap.total_texts:,} texts"
    return f"{overlap.shared_pairs:,} of its {overlap.total_pairs:,} pairs, {texts}" if overlap.total_pairs else texts
