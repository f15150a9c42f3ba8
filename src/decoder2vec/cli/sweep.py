"""`d2v sweep`: which layer, pooling and prompt gives the best embeddings?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import Columns, Device, Limit, Model, SkipBad, split_names
from decoder2vec.cli.output import bars, info, table

if TYPE_CHECKING:
    from decoder2vec.analysis.sweep import Sweep, SweepPlan
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.text.files import ScoredPairs


def sweep(
    model: Model,
    data: Annotated[Path, typer.Option(help="Scored pairs to choose on (.tsv, .csv, .jsonl, or stsb:dev).")],
    out: Annotated[Path, typer.Option(help="Folder for sweep.json, sweep.png and the winning encoder.")],
    test: Annotated[Path | None, typer.Option(help="Scored pairs on which the winner alone is scored, once.")] = None,
    templates: Annotated[str | None, typer.Option(help="Comma-separated names, or one string with {text}.")] = None,
    poolings: Annotated[str | None, typer.Option(help="Comma-separated poolings; by default all.")] = None,
    attentions: Annotated[str, typer.Option(help="Directions to try.")] = "causal,bidirectional",
    heads: Annotated[str, typer.Option(help="none, standardise, whiten, remove_top.")] = "none,standardise",
    columns: Columns = "sentence1,sentence2,score",
    limit: Limit = None,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Try every layer x pooling x prompt x direction on your own pairs, and keep the best as an encoder."""
    from decoder2vec.analysis.sweep import SweepPlan
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.evaluation.similarity import load_pairs

    names = split_names(columns)
    pairs = load_pairs(data, names, skip_bad=skip_bad, limit=limit)
    test_pairs = load_pairs(test, names, skip_bad=skip_bad) if test else None
    if pairs.skipped:
        info(f"{pairs.skipped} lines of {data} were left out")
    chosen: dict[str, Any] = {"attentions": split_names(attentions), "heads": split_names(heads)}
    if templates:
        chosen["templates"] = (templates,) if "{text}" in templates else split_names(templates)
    if poolings:
        chosen["poolings"] = split_names(poolings)
    backbone = Backbone.load(model, device=device, notify=info)
    result = sweep_with_bars(model, backbone, pairs, SweepPlan(**chosen))
    write_sweep(result, out, test_pairs)
    print_sweep(result)


def sweep_with_bars(model: str, backbone: Backbone, pairs: ScoredPairs, plan: SweepPlan) -> Sweep:
    """Run a sweep with one bar for each pass over the texts."""
    from decoder2vec.analysis.sweep import run_sweep

    tasks: dict[str, Any] = {}
    with bars() as progress:

        def on_progress(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=len(pairs.texts()))
            progress.advance(tasks[what], count)

        result = run_sweep(model, pairs, plan, backbone=backbone, on_progress=on_progress)
    for reason in result.skipped:
        info(f"left out: {reason}")
    return result


def write_sweep(result: Sweep, out: Path, test: ScoredPairs | None = None) -> dict[str, Any]:
    """Save encoder, JSON and picture; score the winner on the test pairs, once."""
    from decoder2vec.evaluation.similarity import evaluate_sts
    from decoder2vec.report.sweep_figures import draw_sweep
    from decoder2vec.storage import versions

    out.mkdir(parents=True, exist_ok=True)
    encoder = result.encoder()
    encoder.save(out / "encoder")
    document = result.to_json()
    scored = evaluate_sts(encoder, test) if test else None
    head = {**{k: v for k, v in document.items() if k != "rows"}, "encoder": encoder.fingerprint, "test": scored}
    rows = ",\n  ".join(json.dumps(row) for row in document["rows"])
    text = json.dumps({**head, "versions": versions()}, indent=1)
    (out / "sweep.json").write_text(f'{text[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    draw_sweep(result, out / "sweep.png", scored)
    if scored:
        low, high = scored["spearman_95"]
        typer.echo(
            f"{scored['task']}, scored once: Spearman {scored['spearman']:.2f} [{low:.1f}, {high:.1f}], "
            f"Pearson {scored['pearson']:.2f}"
        )
    info(f"wrote {out / 'sweep.json'}, {out / 'sweep.png'} and the encoder {out / 'encoder'}")
    return head


def print_sweep(result: Sweep, count: int = 12) -> None:
    """The best row of every prompt, direction and pooling, best first."""
    from decoder2vec.analysis.sweep import best_by

    best = best_by(result.rows, "template", "attention", "pooling", "head")[:count]
    rows = [
        (
            row.template,
            row.attention,
            f"{row.layer}{' normed' if row.normed else ''}",
            row.pooling,
            row.head,
            f"{row.spearman:.2f}",
            f"{row.pearson:.2f}",
        )
        for row in best
    ]
    title = f"{result.model} on {result.data.name}: {len(result.rows)} ways to read it, best first"
    table(("template", "attention", "layer", "pooling", "head", "Spearman", "Pearson"), rows, title)
