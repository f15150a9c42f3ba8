"""`d2v bridge`: train a bridge from vectors of any origin to texts, or add vectors to an index through one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import Device, Dtype, refuse_given
from decoder2vec.cli.output import info, show_progress
from decoder2vec.cli.output import table as print_table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.bridge.bridge import Bridge
    from decoder2vec.bridge.control import BlindControl
    from decoder2vec.bridge.vectors import Vectors
    from decoder2vec.search.documents import Document
    from decoder2vec.training.bridge import BridgeConfig, BridgeResult

Captions = Annotated[Path | None, typer.Option(help="Captions (.txt, .tsv, .csv, .jsonl) in the order of the vectors.")]
CaptionColumn = Annotated[str | None, typer.Option(help="Column of the captions; caption, text or sentence.")]
VectorColumn = Annotated[str, typer.Option(help="Column of the vectors in a Parquet file.")]

_OF_TRAINING = [
    *("loss", "model", "tokens", "kind", "prompt", "lora", "epochs", "batch", "rate", "seed", "test"),
    *("json_file", "overwrite"),
]
"""Parameters that only a training uses."""


def bridge(
    context: typer.Context,
    vectors: Annotated[Path, typer.Argument(help="Vectors of any origin: .npy, or .parquet with lists of numbers.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the trained bridge.")] = None,
    captions: Captions = None,
    column: CaptionColumn = None,
    vector_column: VectorColumn = "embedding",
    loss: Annotated[
        str, typer.Option(help="contrastive (items are searched by text) or lm (vectors are described in words).")
    ] = "contrastive",
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Encoder, or language model for lm; smollm2-135m-general, smollm2-135m."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Soft tokens for each vector.")] = 8,
    kind: Annotated[str, typer.Option(help="Projector: linear or mlp.")] = "mlp",
    prompt: Annotated[str | None, typer.Option(help="Text after the soft tokens.")] = None,
    lora: Annotated[int, typer.Option(help="Rank of LoRA in a second stage; 0: the projector alone.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the projector; 10, then 2 with LoRA.")] = None,
    batch: Annotated[int | None, typer.Option(help="Items per batch; 64.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate of the projector; 0.001.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    test: Annotated[
        Path | None, typer.Option(help="Vectors with captions for the blind control; else a tenth.")
    ] = None,
    through: Annotated[Path | None, typer.Option(help="An existing bridge, instead of training one.")] = None,
    index: Annotated[
        str | None, typer.Option(help="Add the vectors to this index, which is created if there is none.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results here.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another bridge in --out.")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Train a bridge from vectors to texts, always measured with real, zeroed and shuffled vectors."""
    if (out is None) == (through is None) or (through and not index):
        raise InputError("Give --out to train a bridge, or --through with --index to add vectors by a trained one.")
    if through:
        refuse_given(context, _OF_TRAINING, "the training of a bridge, and --through names a trained one")
    if out and index and loss == "lm":
        raise InputError("--index needs --loss contrastive: a bridge with --loss lm describes vectors in words.")
    check_output_file(json_file, ".json", sources=[vectors, captions, test])
    with show_progress(keeps_work=out is not None) as progress:
        from decoder2vec.bridge.bridge import Bridge
        from decoder2vec.bridge.vectors import read_captioned_vectors
        from decoder2vec.training.bridge import BridgeConfig, train_bridge

        items = _read_items(vectors, captions, column, vector_column) if index else None  # before a model is loaded
        if through:
            trained = Bridge.from_pretrained(through, device=device, dtype=dtype)
        else:
            with progress.phase("reading"):
                data = read_captioned_vectors(vectors, captions, column, vector_column)
                held_out = read_captioned_vectors(test, None, column, vector_column) if test else None
            config = BridgeConfig(loss, tokens, kind, prompt, lora, seed=seed)
            result = train_bridge(
                model,
                data,
                out or "",
                _with_schedule(config, epochs, batch, rate),
                test=held_out,
                index=index,
                overwrite=overwrite,
                device=device,
                dtype=dtype,
                notify=info,
                command="d2v " + shlex.join(sys.argv[1:]),
            )
            trained = result.bridge
    if out:
        _print(result, out)
    if json_file and out:
        write_json(json_file, result.results)
    if index and items:
        with show_progress(keeps_work=True):
            _add(index, trained, *items)


def _with_schedule(config: BridgeConfig, epochs: int | None, batch: int | None, rate: float | None) -> BridgeConfig:
    """The configuration with what was chosen instead of the defaults; batches are equally large in both stages."""
    chosen: dict[str, Any] = {"epochs": epochs, "batch": batch, "rate": rate}
    training = replace(config.training, **{name: value for name, value in chosen.items() if value is not None})
    tuning = replace(config.tuning, batch=batch) if batch is not None else config.tuning
    return replace(config, training=training, tuning=tuning)


def _read_items(
    vectors: Path, captions: Path | None, column: str | None, vector_column: str
) -> tuple[Vectors, list[Document]]:
    """The vectors and their documents, whose texts are the captions where there are any; else their names."""
    from decoder2vec.bridge.vectors import read_item_texts, read_vectors
    from decoder2vec.search.documents import Document

    table, texts = read_vectors(vectors, vector_column), read_item_texts(vectors, captions, column)
    names = [f"{vectors.name}:{row}" for row in range(len(table))]
    if texts is not None and len(texts) != len(names):
        raise InputError(f"{vectors} has {len(names)} vectors and {len(texts)} captions; give one for each.")
    return table, [Document(name, text) for name, text in zip(names, texts or names, strict=True)]


def _add(location: str, bridge: Bridge, vectors: Vectors, items: list[Document]) -> None:
    from decoder2vec.search.index import Index

    opened = Index.open(location, bridge.encoder) if Index.exists(location) else Index.create(location, bridge.encoder)
    changes = opened.add(items, vectors=vectors, through=bridge)
    info(f"{location}: added {changes.added}, updated {changes.updated}, unchanged {changes.unchanged}")


def print_control(control: BlindControl, title: str) -> None:
    """Print the scores with real, zeroed and shuffled vectors side by side."""
    from decoder2vec.bridge.control import COLUMNS

    print_table(COLUMNS, control.rows(), title)
    if not control.uses_vectors:
        info("warning: real vectors are not better than zeroed and shuffled ones: the bridge does not use them")


def _print(result: BridgeResult, out: Path) -> None:
    if not result.trained:
        info(f"Nothing to do: {out} is up to date (same settings, data and weights).")
    for stage in result.results["stages"]:
        trained = f"{stage['trained_parameters']:,} parameters trained"
        info(f"{stage['stage']}: {trained}, {stage['metric']} on dev {stage['start']} -> {stage['best']}")
    print_control(result.control, f"{result.control.items} held-out items, 95 % intervals")
    if result.trained:
        info(f"wrote the bridge {out}")
