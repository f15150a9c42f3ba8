"""`d2v eval`: score an encoder on scored pairs or on a folder of tasks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Columns,
    Device,
    Dtype,
    Engine,
    Layer,
    Limit,
    PoolingOption,
    SkipBad,
    TemplateOption,
    Workers,
    split_names,
)
from decoder2vec.cli.output import info, show_progress, table


def evaluate(
    encoder: Annotated[
        str,
        typer.Argument(
            help="Saved encoder folder, or any model (then see --layer and so on), or a baseline: bm25, random, "
            "static:MODEL, all-minilm-l6-v2, a sentence-transformers folder."
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Option(help="Scored pairs, or stsb:test from the hub; may be repeated. Or one folder of tasks."),
    ],
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of the folder: all, or names and kinds such as sts,scifact,clustering.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="NAME=TEXT: a prompt for a task, a kind, query or document; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
    columns: Columns = "sentence1,sentence2,score",
    limit: Limit = None,
    skip_bad: SkipBad = False,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Score an encoder: Spearman and Pearson on scored pairs, or all tasks in a folder, with confidence intervals.

    A folder has files in sts/, pairs/, retrieval/, reranking/, clustering/ and classification/. If it is interrupted,
    the same command with the same --json continues where it stopped.
    """
    of_tasks = tasks is not None or any(path.is_dir() for path in data)
    with show_progress(keeps_work=of_tasks) as progress:
        from decoder2vec.evaluation import api

        progress.expect("loading the model")
        document = api.evaluate(
            encoder,
            data,
            tasks=tasks,
            prompts=_parse_prompts(prompt or ()),
            json_file=json_file,
            limit=limit,
            columns=split_names(columns),
            skip_bad=skip_bad,
            device=device,
            engine=engine,
            workers=workers,
            notify=info,
            command=shlex.join(["d2v", *sys.argv[1:]]),
            layer=layer,
            pooling=pooling,
            template=template,
            attention=attention,
            dtype=dtype,
        )
    if "tasks" in document:
        _print_tasks(document)
    else:
        _print_pairs(document)


def _parse_prompts(options: Sequence[str]) -> dict[str, str]:
    from decoder2vec.errors import InputError

    for option in options:
        if "=" not in option:
            raise InputError(f"--prompt takes NAME=TEXT, such as query='Find: ', not {option!r}.")
    return dict(option.split("=", 1) for option in options)


def _print_tasks(document: dict[str, Any]) -> None:
    rows = []
    for name, result in document["tasks"].items():
        low, high = result["interval"]
        constant = f"{result['constant_score']:.1f}" if "constant_score" in result else "-"
        score = (result["metric"], f"{result['score']:.2f}", f"{low:.1f}-{high:.1f}", constant)
        rows.append((name, result["kind"].replace("_", " "), *score, f"{result['seconds']:.1f}"))
    for kind, mean in document["summary"].items():
        label = "mean of four kinds" if kind == "average" else f"mean {kind.replace('_', ' ')}"
        rows.append((label, "", "", f"{mean:.2f}", "", "", ""))
    encoder = document["encoder"]
    title = _title(encoder["name"], encoder.get("spec"))
    table(("task", "kind", "metric", "score", "95 %", "constant", "seconds"), rows, title)
    for name, result in document["tasks"].items():
        for flag in result.get("flags", []):
            info(f"{name}: {flag}")


def _print_pairs(document: dict[str, Any]) -> None:
    rows = []
    for result in document["results"]:
        low, high = result["spearman_95"]
        scores = (f"{result['spearman']:.2f}", f"{low:.1f}-{high:.1f}", f"{result['pearson']:.2f}")
        rows.append((result["task"], str(result["pairs"]), *scores, f"{result['seconds']:.1f}"))
    if len(rows) > 1:
        rows.append(("mean", "", f"{document['mean_spearman']:.2f}", "", "", ""))
    title = _title(document["encoder"], document.get("spec"))
    table(("task", "pairs", "Spearman", "95 %", "Pearson", "seconds"), rows, title)


def _title(name: str, spec: dict[str, Any] | None) -> str:
    """The encoder's name and, if it is one of this package, what it reads from its model."""
    from decoder2vec.config import EncoderSpec

    if spec is None:
        return name
    parsed = EncoderSpec.from_json(spec)
    readings = " + ".join(map(str, parsed.readings[:3])) + (" + ..." if len(parsed.readings) > 3 else "")
    return f"{name}: {readings}, {parsed.template!r}, {parsed.attention}"
