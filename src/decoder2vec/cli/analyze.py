"""`d2v analyze`: measure the vectors of every layer, without labels, and the use of the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, TemplateOption
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.storage import check_output_file

Document = dict[str, Any]

analyze = typer.Typer(
    name="analyze",
    help="Measure the vectors of every layer, or the tokens in use, on texts without labels.",
    no_args_is_help=True,
)

Texts = Annotated[Path | None, typer.Option(help="Texts: a .txt file, or any data file, of which all texts are taken.")]
Out = Annotated[Path, typer.Option(help="Where the result goes (.json).")]
Plot = Annotated[Path | None, typer.Option(help="Draw the curves into this file (.png).")]
TextLimit = Annotated[int | None, typer.Option(help="Use only this many texts, spread evenly over the file.")]
Pooling = Annotated[str | None, typer.Option(help="Pooling of the layers; by default the encoder's.")]


@analyze.command("id")
def intrinsic_dimension(
    encoders: Annotated[
        list[str], typer.Argument(help="Encoders or models, or results of earlier runs (.json): all in one figure.")
    ],
    out: Out,
    texts: Texts = None,
    plot: Plot = None,
    limit: TextLimit = None,
    pooling: Pooling = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    discard: Annotated[float, typer.Option(help="Share of the largest ratios that TwoNN leaves out.")] = 0.1,
    cdf: Annotated[str, typer.Option(help="Share of ratios up to the i-th of N: i/N or (i-1)/N.")] = "i/N",
    neighbours: Annotated[int, typer.Option(help="Neighbours for maximum likelihood.")] = 50,
    average: Annotated[str, typer.Option(help="Average local estimates (mean) or their inverses (inverse).")] = "mean",
    seed: Annotated[int, typer.Option(help="Seed of random subsamples and bootstrap samples.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Intrinsic dimension of every layer: TwoNN and maximum likelihood with intervals, and the area of the curve."""
    from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, measure_dimension
    from decoder2vec.report.analysis_figures import draw_intrinsic_dimension

    check_output_file(plot, ".png")
    with show_progress(keeps_work=True):
        document = measure_dimension(
            encoders,
            texts,
            out=out,
            plan=DimensionPlan(discard=discard, cdf=cdf, neighbours=neighbours, average=average, seed=seed),
            limit=limit,
            pooling=pooling,
            template=template,
            attention=attention,
            device=device,
            dtype=dtype,
            notify=info,
        )
    curves = document.get("encoders", [document])
    info(f"wrote {out}")
    if plot:
        draw_intrinsic_dimension(curves, plot)
        info(f"wrote {plot}")
    _print_dimension(curves, document.get("differences", []))


@analyze.command("geometry")
def geometry(
    encoders: Annotated[list[str], typer.Argument(help="Encoders or models: all in one figure.")],
    texts: Texts,
    out: Out,
    pairs: Annotated[Path | None, typer.Option(help="Positive pairs, or scored pairs, to measure alignment.")] = None,
    plot: Plot = None,
    limit: TextLimit = None,
    pooling: Pooling = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Anisotropy, effective rank, uniformity and alignment of every layer, and the similarity of layers (CKA)."""
    from decoder2vec.analysis.geometry import measure_geometry
    from decoder2vec.report.analysis_figures import draw_geometry

    check_output_file(plot, ".png")
    with show_progress(keeps_work=True):
        document = measure_geometry(
            encoders,
            texts,
            out=out,
            pairs=pairs,
            limit=limit,
            pooling=pooling,
            template=template,
            attention=attention,
            device=device,
            dtype=dtype,
            notify=info,
        )
    documents = document.get("encoders", [document])
    info(f"wrote {out}")
    if plot:
        draw_geometry(documents, plot)
        info(f"wrote {plot}")
    _print_geometry(documents)


@analyze.command("vocabulary")
def vocabulary(
    model: Annotated[str, typer.Argument(help="Built-in name, model folder (config and tokenizer), or an encoder.")],
    texts: Texts,
    out: Out,
    held_out: Annotated[
        Path | None, typer.Option(help="Other texts, to measure how many would change; by default every tenth text.")
    ] = None,
    plot: Plot = None,
    limit: TextLimit = None,
    template: TemplateOption = None,
) -> None:
    """Which tokens texts use, and what `d2v prune --vocabulary` would save; no weights are loaded."""
    from decoder2vec.analysis.vocabulary import measure_vocabulary
    from decoder2vec.report.analysis_figures import draw_vocabulary

    check_output_file(plot, ".png")
    with show_progress():
        document = measure_vocabulary(
            model, texts, held_out=held_out, out=out, template=template, limit=limit, notify=info
        )
    info(f"wrote {out}")
    if plot:
        draw_vocabulary(document, plot)
        info(f"wrote {plot}")
    _print_vocabulary(document)


def _print_vocabulary(document: Document) -> None:
    title = f"{document['model']}: {document['rows']:,} tokens, {document['parameters']:,} parameters"
    by_texts = [
        (f"{row['texts']:,}", f"{row['rows']:,}", f"{row['rows'] / document['rows']:.1%}", _percent(row))
        for row in document["by_texts"]
    ]
    table(("texts", "tokens kept", "share", "held-out texts unchanged"), by_texts, title)
    by_size = [
        (
            f"{row['rows']:,}",
            f"{row['tokens_covered']:.2%}",
            _percent(row),
            f"{row['parameters']:,}",
            f"{row['parameters_saved']:.1%}",
        )
        for row in document["by_size"]
    ]
    columns = ("tokens kept", "of all occurrences", "held-out texts unchanged", "parameters", "saved")
    table(columns, by_size, f"the most frequent tokens of {document['texts']['count']:,} texts")


def _percent(row: Document) -> str:
    return "-" if row["held_out_covered"] is None else f"{row['held_out_covered']:.1%}"


def _print_dimension(curves: list[Document], differences: list[Document]) -> None:
    from decoder2vec.analysis.intrinsic_dimension import curve_label, format_area

    for curve in curves:
        columns = ("layer", "TwoNN", "95 %", "half of them", "MLE", "anisotropy", "effective rank", "points", "flags")
        rows = [_dimension_row(name, row) for name, row in _named_rows(curve)]
        table(columns, rows, f"{curve_label(curve)}: {_settings(curve)}")
        typer.echo(f"area over depth 1, layers 1 to {curve['depth']}: {format_area(curve)}")
    for difference in differences:
        bounds = difference["area_unit_95"]
        value = "-" if difference["area_unit"] is None else f"{difference['area_unit']:+.2f}"
        interval = f" [{bounds[0]:+.2f}, {bounds[1]:+.2f}]" if bounds else ""
        warning = "" if difference["comparable"] else " (other texts or settings: do not compare)"
        typer.echo(f"area of {difference['encoder']} minus that of {difference['less']}: {value}{interval}{warning}")


def _dimension_row(name: str, row: Document) -> tuple[str, ...]:
    bounds, subsamples = row["twonn_95"], row["subsamples"]
    return (
        name,
        _format(row["twonn"], 2),
        f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "",
        _format(subsamples[0]["mean"], 2) if subsamples else "",
        _format(row["mle"], 2),
        _format(row["anisotropy"], 3),
        _format(row["effective_rank"], 1),
        f"{row['points']:,}",
        ", ".join(row["flags"]),
    )


def _print_geometry(documents: list[Document]) -> None:
    measures = ("anisotropy", "effective_rank", "uniformity", "alignment")
    columns = ("layer", "anisotropy", "effective rank", "uniformity", "alignment", "flags")
    for document in documents:
        rows = [
            (name, *(_format(row[measure], 3) for measure in measures), ", ".join(row["flags"]))
            for name, row in _named_rows(document)
        ]
        table(columns, rows, f"{document['encoder']}: {_settings(document)}")


def _named_rows(document: Document) -> list[tuple[str, Document]]:
    """The rows of all layers and that of the embeddings, with their names for a table."""
    layers = [(str(row["layer"]) + " normed" * row["normed"], row) for row in document["layers"]]
    return [*layers, ("embedding", document["embedding"])]


def _settings(document: Document) -> str:
    return f"{document['pooling']}, {document['attention']}, {document['template']!r}"


def _format(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
