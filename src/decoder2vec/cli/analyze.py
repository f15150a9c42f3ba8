"""`d2v analyze`: what the vectors of each layer look like, without any labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import AttentionOption, Device, TemplateOption, open_encoder
from decoder2vec.cli.output import bars, info, table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_target, write_json

if TYPE_CHECKING:
    from decoder2vec.analysis.layer_embeddings import LayerEmbeddings

Document = dict[str, Any]
OnProgress = Callable[[str, int], object]

analyze = typer.Typer(help="Measure the vectors of every layer, from texts alone.", no_args_is_help=True)

Texts = Annotated[Path | None, typer.Option(help="Texts: a .txt file, or any data file, of which all texts are taken.")]
Out = Annotated[Path, typer.Option(help="Where the result goes (.json).")]
Plot = Annotated[Path | None, typer.Option(help="Draw the curves into this file (.png).")]
TextLimit = Annotated[int | None, typer.Option(help="Use only this many texts, spread evenly over the file.")]
Pooling = Annotated[str | None, typer.Option(help="How layers are read; by default as the encoder reads them.")]


@dataclass(frozen=True)
class _Source:
    """What is read, and how."""

    file: Path
    texts: list[str]
    pooling: str | None = None
    template: str | None = None
    attention: str | None = None
    device: str | None = None

    def run(self, name: str, make: Callable[[LayerEmbeddings, OnProgress], Document], pairs: int = 0) -> Document:
        """Read an encoder's layers and make a document of them, with bars."""
        from decoder2vec.analysis.layer_embeddings import LayerEmbeddings
        from decoder2vec.storage import versions

        encoder = open_encoder(name, self.device, template=self.template, attention=self.attention)
        passes = len({reading.template for reading in encoder.spec.readings})
        totals = {"texts": passes * len(self.texts), "pairs": passes * pairs, "layers": encoder.backbone.n_layers + 2}
        with bars() as progress:
            tasks = {what: progress.add_task(f"{name}: {what}", total=totals[what]) for what in totals if totals[what]}

            def on_progress(what: str, count: int) -> None:
                progress.advance(tasks[what], count)

            clouds = LayerEmbeddings(encoder, self.texts, self.pooling, lambda count: on_progress("texts", count))
            document = make(clouds, on_progress)
        texts = {"file": self.file.name, **document.pop("texts")}
        samples = {key: document.pop(key) for key in ("area_samples",) if key in document}
        return {"encoder": name, **document, "texts": texts, "versions": versions(), **samples}


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
    seed: Annotated[int, typer.Option(help="Of random parts and bootstrap samples.")] = 0,
    device: Device = None,
) -> None:
    """Intrinsic dimension of every layer: TwoNN and maximum likelihood with intervals, and the area of the curve."""
    from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, differences, dimension_curve, read_curves
    from decoder2vec.report.analysis_figures import draw_intrinsic_dimension

    _check_targets(out, plot, [texts, *encoders])
    plan = DimensionPlan(discard=discard, cdf=cdf, neighbours=neighbours, average=average, seed=seed)
    plan.check()
    earlier = {name: read_curves(Path(name)) for name in encoders if name.endswith(".json")}
    source = None
    if len(earlier) < len(set(encoders)):
        file, chosen = _texts(texts, limit)
        source = _Source(file, chosen, pooling, template, attention, device)
    found: list[Document] = []
    for name in encoders:
        if source is None or name in earlier:
            found += earlier[name]
        else:
            found.append(source.run(name, lambda clouds, on_progress: dimension_curve(clouds, plan, on_progress)))
    compared = differences(found)
    _write(out, found, {"differences": compared})
    if plot:
        draw_intrinsic_dimension(found, plot)
        info(f"wrote {plot}")
    _print_dimension(found, compared)


@analyze.command("geometry")
def geometry(
    encoders: Annotated[list[str], typer.Argument(help="Encoders or models: all in one figure.")],
    texts: Texts,
    out: Out,
    pairs: Annotated[Path | None, typer.Option(help="Pairs that belong together, or scored ones: alignment.")] = None,
    plot: Plot = None,
    limit: TextLimit = None,
    pooling: Pooling = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Anisotropy, effective rank, uniformity and alignment of every layer, and which layers are alike (CKA)."""
    from decoder2vec.analysis.geometry import layer_geometry, read_related_pairs
    from decoder2vec.report.analysis_figures import draw_geometry

    _check_targets(out, plot, [texts, pairs])
    together = read_related_pairs(pairs) if pairs else None
    file, chosen = _texts(texts, limit)
    source = _Source(file, chosen, pooling, template, attention, device)
    count = len(together.texts()) if together else 0
    found = [
        source.run(name, lambda clouds, on_progress: layer_geometry(clouds, together, on_progress), pairs=count)
        for name in encoders
    ]
    _write(out, found)
    if plot:
        draw_geometry(found, plot)
        info(f"wrote {plot}")
    _print_geometry(found)


def _check_targets(out: Path, plot: Path | None, sources: Sequence[Path | str | None]) -> None:
    check_target(out, ".json", sources=sources)
    check_target(plot, ".png")


def _texts(file: Path | None, limit: int | None) -> tuple[Path, list[str]]:
    """The different texts of a file that are not blank."""
    from decoder2vec.analysis.layer_embeddings import spread
    from decoder2vec.text.files import read_data_file

    if file is None:
        raise InputError("Give the texts to measure on: --texts FILE.")
    if limit is not None and limit < 1:
        raise InputError(f"A limit of {limit} texts leaves nothing; give 1 or more.")
    every = list(read_data_file(file).texts())
    chosen = spread(every)
    if len(chosen) < len(every):
        info(f"{file}: {len(every) - len(chosen):,} of {len(every):,} texts are blank or stand there twice; left out")
    return file, spread(chosen, limit)


def _write(out: Path, found: list[Document], more: Document | None = None) -> None:
    """One document as it is; several under `encoders`."""
    write_json(out, found[0] if len(found) == 1 else {"encoders": found, **(more or {})}, allow_nan=False)
    info(f"wrote {out}")


def _print_dimension(found: list[Document], compared: list[Document]) -> None:
    from decoder2vec.analysis.intrinsic_dimension import area_said, label

    for curve in found:
        columns = ("layer", "TwoNN", "95 %", "half of them", "MLE", "anisotropy", "effective rank", "points", "flags")
        rows = [_dimension_row(str(row["layer"]) + " normed" * row["normed"], row) for row in curve["layers"]]
        rows.append(_dimension_row("embedding", curve["embedding"]))
        table(columns, rows, f"{label(curve)}: {curve['pooling']}, {curve['attention']}, {curve['template']!r}")
        typer.echo(f"area over depth 1, layers 1 to {curve['depth']}: {area_said(curve)}")
    for each in compared:
        bounds = each["area_unit_95"]
        said = "-" if each["area_unit"] is None else f"{each['area_unit']:+.2f}"
        paired = f" [{bounds[0]:+.2f}, {bounds[1]:+.2f}]" if bounds else ""
        doubt = "" if each["comparable"] else " (other texts or settings: do not compare)"
        typer.echo(f"area of {each['encoder']} less that of {each['less']}: {said}{paired}{doubt}")


def _dimension_row(name: str, row: Document) -> tuple[str, ...]:
    bounds, parts = row["twonn_95"], row["subsamples"]
    return (
        name,
        _said(row["twonn"], 2),
        f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "",
        _said(parts[0]["mean"], 2) if parts else "",
        _said(row["mle"], 2),
        _said(row["anisotropy"], 3),
        _said(row["effective_rank"], 1),
        f"{row['points']:,}",
        ", ".join(row["flags"]),
    )


def _print_geometry(found: list[Document]) -> None:
    names = ("anisotropy", "effective_rank", "uniformity", "alignment")
    for shape in found:
        rows = [
            (name, *(_said(row[field], 3) for field in names), ", ".join(row["flags"]))
            for name, row in [
                *((str(row["layer"]) + " normed" * row["normed"], row) for row in shape["layers"]),
                ("embedding", shape["embedding"]),
            ]
        ]
        columns = ("layer", "anisotropy", "effective rank", "uniformity", "alignment", "flags")
        table(columns, rows, f"{shape['encoder']}: {shape['pooling']}, {shape['attention']}, {shape['template']!r}")


def _said(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
