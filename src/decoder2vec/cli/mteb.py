"""`d2v mteb`: the tasks of mteb by name, for people with a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from decoder2vec.cli.options import AttentionOption, Device, Layer, PoolingOption, TemplateOption, split_names
from decoder2vec.cli.output import table
from decoder2vec.storage import write_json


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
        str | None, typer.Option(help="Prompt with {instruction} in it, for what mteb says about a task.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="mteb's folder of results; by default its own cache.")] = None,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Score an encoder on tasks of mteb, by mteb itself; what was scored before is not computed again."""
    from decoder2vec.errors import InputError
    from decoder2vec.evaluation.baselines import load_encoder
    from decoder2vec.evaluation.mteb import as_mteb_model, run_tasks
    from decoder2vec.evaluation.suite import kind_of

    names = [name for names in tasks for name in split_names(names)]
    if not names:
        raise InputError("Name a task of mteb, such as --tasks STSBenchmark.")
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    model = as_mteb_model(load_encoder(encoder, device=device, **choices), name or _name_of(encoder), instruction)
    done: list[dict[str, Any]] = []
    for result in run_tasks(model, names, results, show_progress_bar=sys.stderr.isatty()):
        done.append(result)
        if json_file:  # after every task: a run that is stopped keeps what it has
            _write(json_file, {"encoder": encoder, "kind": kind_of(model.encoder), "name": model.name}, model, done)
    rows = [(one["task"], one["type"], one["metric"], f"{one['score']:.2f}", f"{one['seconds']:.1f}") for one in done]
    if len(rows) > 1:
        rows.append(("mean", "", "", f"{sum(one['score'] for one in done) / len(done):.2f}", ""))
    table(("task", "type", "metric", "score", "seconds"), rows, repr(model.encoder))


def _name_of(encoder: str) -> str:
    """decoder2vec/ and the last part of the encoder's name, with signs that a folder's name can have."""
    last = re.sub(r"[^\w.-]+", "-", Path(encoder).expanduser().resolve().name).strip("-.")
    return f"decoder2vec/{last or 'encoder'}"


def _write(file: Path, head: dict[str, Any], model: Any, results: list[dict[str, Any]]) -> None:
    from importlib import metadata

    from decoder2vec.storage import versions

    document = {
        **head,
        "fingerprint": model.encoder.fingerprint,
        "instruction": model.instruction,
        "results": results,
        "versions": {**versions(), "mteb": metadata.version("mteb")},
    }
    write_json(file, document)
