"""`d2v mteb`: score an encoder on tasks of mteb, which downloads their data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, Layer, PoolingOption, TemplateOption, split_names
from decoder2vec.cli.output import show_progress, table


def mteb(
    encoder: Annotated[
        str,
        typer.Argument(help="Saved encoder, any model, or a baseline: bm25, random, static:MODEL, all-minilm-l6-v2."),
    ],
    tasks: Annotated[list[str], typer.Option(help="Names of tasks, such as STSBenchmark,STS12; may be repeated.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all scores here.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Organisation and name for mteb, such as me/mine; by default from ENCODER.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(help="Prompt with {instruction} in it, for mteb's instruction for a task.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="mteb's results folder; by default its own cache.")] = None,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Score an encoder on tasks of mteb, by mteb itself; stored results are not computed again."""
    with show_progress(keeps_work=True):
        from decoder2vec.evaluation.mteb import evaluate_mteb

        document = evaluate_mteb(
            encoder,
            [task for option in tasks for task in split_names(option)],
            name=name,
            instruction=instruction,
            results_folder=results,
            json_file=json_file,
            device=device,
            layer=layer,
            pooling=pooling,
            template=template,
            attention=attention,
            dtype=dtype,
        )
    scored = document["results"]
    rows = [
        (result["task"], result["type"], result["metric"], f"{result['score']:.2f}", f"{result['seconds']:.1f}")
        for result in scored
    ]
    if len(rows) > 1:
        rows.append(("mean", "", "", f"{sum(result['score'] for result in scored) / len(scored):.2f}", ""))
    title = f"{document['encoder']} ({document['kind']}) as {document['name']}"
    table(("task", "type", "metric", "score", "seconds"), rows, title)
