"""`d2v eval`: score an encoder on files of scored pairs, or on a folder of tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.evaluate_tasks import TaskChoices, evaluate_tasks, pairs_seen
from decoder2vec.cli.options import (
    AttentionOption,
    Columns,
    Device,
    Layer,
    Limit,
    PoolingOption,
    SkipBad,
    TemplateOption,
    open_any_encoder,
    split_names,
)
from decoder2vec.cli.show import say, table
from decoder2vec.cli.targets import check_target, write_json

if TYPE_CHECKING:
    from decoder2vec.text.files import Pairs


def evaluate(
    encoder: Annotated[
        str,
        typer.Argument(
            help="Saved encoder folder, or any model (then see --layer and so on); to compare with: bm25, random, "
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
) -> None:
    """Spearman and Pearson of an encoder on scored pairs, or the scores of all tasks in a folder, with intervals.

    A folder has files in sts/, pairs/, retrieval/, reranking/, clustering/ and classification/. Interrupted, the same
    command with the same --json goes on where it was.
    """
    check_target(json_file, ".json", sources=data)
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    open_model = partial(open_any_encoder, encoder, device, **choices)
    if tasks is not None or any(file.is_dir() for file in data):
        wanted = TaskChoices(data, split_names(tasks or "all"), json_file, limit, prompt or ())
        evaluate_tasks(encoder, wanted, open_model)
    else:
        read = partial(load_scored, columns=split_names(columns), skip_bad=skip_bad, limit=limit)
        evaluate_pairs(encoder, [read(file) for file in data], json_file, open_model)


def load_scored(file: Path, columns: Sequence[str], **options: Any) -> Pairs:
    """Scored pairs; lines that were left out are told of."""
    from decoder2vec.evaluation.sts import load_pairs

    pairs = load_pairs(file, columns, **options)
    if pairs.skipped:
        say(f"{pairs.skipped} lines of {file} were left out")
    return pairs


def evaluate_pairs(name: str, files: list[Pairs], json_file: Path | None, open_model: Callable[[], Any]) -> None:
    """Score files of pairs, one after the other."""
    from decoder2vec.evaluation.sts import evaluate_sts
    from decoder2vec.evaluation.versions import versions

    _warn_of_overlap(Path(name), files)
    model = open_model()
    results = [evaluate_sts(model, pairs, show_progress_bar=sys.stderr.isatty()) for pairs in files]
    mean = sum(result["spearman"] for result in results) / len(results)
    rows = [_row(result) for result in results]
    if len(rows) > 1:
        rows.append(("mean", "", f"{mean:.2f}", "", "", ""))
    table(("task", "pairs", "Spearman", "95 %", "Pearson", "seconds"), rows, repr(model))
    if json_file:
        document = {
            "encoder": name,
            "fingerprint": model.fingerprint,
            **_of_our_own(model),
            "results": results,
            "mean_spearman": round(mean, 2),
            "versions": versions(),
        }
        write_json(json_file, document)


def _of_our_own(model: Any) -> dict[str, Any]:
    """What an encoder knows about itself and a baseline does not."""
    from decoder2vec.encoder import Encoder

    if not isinstance(model, Encoder):
        return {}
    pace = round(model.tally.tokens_per_second, 1)
    return {"spec": model.spec.to_json(), "tokens": model.tally.tokens, "tokens_per_second": pace}


def _warn_of_overlap(folder: Path, files: list[Pairs]) -> None:
    """Say how many pairs of each file the encoder was trained on."""
    from decoder2vec.text.overlap import overlapping

    seen = pairs_seen(folder)
    for pairs in files if seen is not None else ():
        if count := overlapping(pairs.left, pairs.right, seen):
            say(
                f"warning: this encoder was trained on {count} of the {len(pairs)} pairs of {pairs.name}; "
                "its score there does not say how it does on new texts"
            )


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    low, high = result["spearman_95"]
    return (
        result["task"],
        str(result["pairs"]),
        f"{result['spearman']:.2f}",
        f"{low:.1f}-{high:.1f}",
        f"{result['pearson']:.2f}",
        f"{result['seconds']:.1f}",
    )
