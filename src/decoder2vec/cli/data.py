"""`d2v data`: what is in a file of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device
from decoder2vec.cli.output import info, table
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.text.data_check import FileCheck, Overlap

_CLASSES_SHOWN = 10

data = typer.Typer(help="Look at files of texts before they are used.", no_args_is_help=True)


@data.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Pairs, triplets, labelled texts, records or plain texts.")],
    against: Annotated[
        list[Path] | None, typer.Option(help="Evaluation file to look for in it; may be repeated.")
    ] = None,
) -> None:
    """Say which kind of data a file holds and how much of it, what is wrong with it, and what an evaluation shares."""
    from decoder2vec.text.data_check import check_file, measure_overlap
    from decoder2vec.text.files import read_data_file

    read = read_data_file(file)
    rows = _rows(check_file(read))
    rows += [
        (f"also in {other.name}", _describe_overlap(measure_overlap(read, read_data_file(other))))
        for other in against or []
    ]
    table(("what", "found"), rows, str(file))


@data.command("mine")
def mine(
    file: Annotated[Path, typer.Argument(help="Pairs, triplets, labelled texts or records.")],
    encoder: Annotated[str, typer.Option(help="Saved encoder or model that says what is near.")],
    out: Annotated[Path, typer.Option(help="Where the examples go (.jsonl).")],
    count: Annotated[int, typer.Option(help="Negatives for each example.")] = 3,
    margin: Annotated[float, typer.Option(help="Only texts below this part of the positive's similarity.")] = 0.95,
    skip: Annotated[int, typer.Option(help="Leave out so many of the nearest.")] = 0,
    device: Device = None,
) -> None:
    """Find hard negatives in the data itself: near to the anchor, and not known to belong to it."""
    from decoder2vec.encoder import Encoder
    from decoder2vec.storage import atomic_file
    from decoder2vec.training.contrastive_examples import read_contrastive_examples
    from decoder2vec.training.mining import mine_hard_negatives, to_jsonl

    check_output_file(out, ".jsonl", sources=[file])
    examples = read_contrastive_examples(file)
    for note in examples.notes:
        info(note)
    model = Encoder.from_pretrained(encoder, device=device)
    rows = mine_hard_negatives(model, examples, count=count, margin=margin, skip=skip, show_progress_bar=True)
    with atomic_file(out) as temporary:
        temporary.write_text(to_jsonl(rows), encoding="utf-8")
    found = sum(len(row) - 2 for row in rows)
    info(f"{found:,} negatives for {len(rows):,} examples ({sum(len(row) == 2 for row in rows):,} have none): {out}")


@data.command("concepts")
def concepts(
    domain: Annotated[Path, typer.Argument(help="Texts of the field.")],
    general: Annotated[Path, typer.Option(help="Texts such as the model was trained on.")],
    out: Annotated[Path, typer.Option(help="Where the concepts go, one a line (.txt).")],
    top: Annotated[int, typer.Option(help="By how much more often they stand in the field: so many.")] = 2000,
    least: Annotated[int, typer.Option(help="Times that a concept must stand in the field.")] = 5,
    graph: Annotated[Path | None, typer.Option(help="Edges between concepts: seeds and what is near them.")] = None,
    frequency: Annotated[float, typer.Option(help="With a graph: times in a million words that make a seed.")] = 100,
    seeds: Annotated[int, typer.Option(help="With a graph: how many seeds.")] = 5000,
    hops: Annotated[int, typer.Option(help="With a graph: how far from a seed.")] = 5,
) -> None:
    """List the concepts of a field, to be masked when a model learns it: frequent there and rare elsewhere."""
    from decoder2vec.text.concepts import ConceptGraph, ConceptSet, Frequency
    from decoder2vec.text.files import TEXT_COLUMN_HINT, read_texts

    check_output_file(out, sources=[domain, general, graph])
    texts, others = (read_texts(file, hint=TEXT_COLUMN_HINT) for file in (domain, general))
    if graph:
        often = Frequency(per_million=frequency)
        found = ConceptSet.from_graph(texts, others, ConceptGraph.read(graph), frequency=often, seeds=seeds, hops=hops)
    else:
        found = ConceptSet.from_log_ratio(texts, others, top=top, min_count=least)
    found.write(out)
    table(
        ("what", "found"),
        [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in found.notes.items()],
    )
    info(f"{len(found):,} concepts: {out}")


def _rows(found: FileCheck) -> list[tuple[str, str]]:
    from decoder2vec.training.data import guess_scale

    shortest, median, most, longest = found.characters
    rows = [
        ("kind", found.kind),
        ("columns", ", ".join(found.columns)),
        ("rows", f"{found.rows:,}"),
        ("texts", f"{found.texts:,}, {found.unique_texts:,} different"),
        ("characters", f"min {shortest:,}, median {median:,}, 95 % {most:,}, max {longest:,}"),
        ("empty rows", f"{found.empty:,}"),
        ("duplicate rows", f"{found.duplicates:,}"),
    ]
    if found.scores:
        low, high = guess_scale(*found.scores)
        rows.append(("scale", f"{low:g} to {high:g}, scores from {found.scores[0]:g} to {found.scores[1]:g}"))
    if found.classes:
        rows.append(("classes", _classes(found.classes)))
    return rows


def _classes(classes: dict[str, int]) -> str:
    shown = [f"{label} {count:,}" for label, count in list(classes.items())[:_CLASSES_SHOWN]]
    if more := len(classes) - len(shown):
        shown.append(f"{more:,} more down to {min(classes.values()):,}")
    return f"{len(classes):,}: {', '.join(shown)}"


def _describe_overlap(overlap: Overlap) -> str:
    texts = f"{overlap.shared_texts:,} of its {overlap.total_texts:,} texts"
    return f"{overlap.shared_pairs:,} of its {overlap.total_pairs:,} pairs, {texts}" if overlap.total_pairs else texts
