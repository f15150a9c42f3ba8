"""`d2v data`: check data files, mine hard negatives and list the concepts of a domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.text.data_check import FileCheck, Overlap

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
    file: Annotated[Path, typer.Argument(help="Pairs, triplets, labelled texts or records.")],
    encoder: Annotated[str, typer.Option(help="Saved encoder or model that measures similarity.")],
    out: Annotated[Path, typer.Option(help="Output file (.jsonl).")],
    count: Annotated[int, typer.Option(help="Negatives for each example.")] = 3,
    margin: Annotated[
        float, typer.Option(help="Maximum similarity to the anchor, as a share of the positive's.")
    ] = 0.95,
    skip: Annotated[int, typer.Option(help="Skip this many of the nearest texts.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Mine hard negatives within a file: texts near an anchor that are not among its positives."""
    check_output_file(out, ".jsonl", sources=[file])
    with show_progress() as progress:
        from decoder2vec.encoder import Encoder
        from decoder2vec.storage import atomic_file
        from decoder2vec.training.contrastive_examples import read_contrastive_examples
        from decoder2vec.training.mining import mine_hard_negatives, to_jsonl

        with progress.phase("reading"):
            examples = read_contrastive_examples(file)
        progress.expect("loading the model")
        progress.expect("encoding", len(examples.texts))
        for phase in ("mining negatives", "saving"):
            progress.expect(phase)
        for note in examples.notes:
            info(note)
        model = Encoder.from_pretrained(encoder, device=device, dtype=dtype)
        rows = mine_hard_negatives(model, examples, count=count, margin=margin, skip=skip)
        with progress.phase("saving"), atomic_file(out) as temporary:
            temporary.write_text(to_jsonl(rows), encoding="utf-8")
    n_negatives = sum(len(row) - 2 for row in rows)
    n_without = sum(len(row) == 2 for row in rows)
    info(f"{n_negatives:,} negatives for {len(rows):,} examples ({n_without:,} have none): {out}")


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
