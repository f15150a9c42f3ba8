"""`d2v eval --tasks`: an encoder on every task of a folder."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Columns,
    Device,
    Layer,
    Limit,
    PoolingOption,
    SkipBad,
    TemplateOption,
    load_any_encoder,
    split_names,
)
from decoder2vec.cli.output import bars, info, table
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.evaluation.suite import Estimate, Suite
    from decoder2vec.text.files import ScoredPairs


@dataclass(frozen=True)
class TaskChoices:
    """What of a folder is measured, and where it is written."""

    data: Sequence[Path]
    tasks: Sequence[str] = ("all",)
    json_file: Path | None = None
    limit: int | None = None
    prompts: Sequence[str] = ()


def evaluate_tasks(name: str, choices: TaskChoices, open_model: Callable[[], Any]) -> None:
    """Find the tasks, say how long they will take, do them, print a table."""
    from decoder2vec.errors import InputError
    from decoder2vec.evaluation.suite import Suite
    from decoder2vec.evaluation.tasks.layout import find_tasks

    if len(choices.data) != 1:
        raise InputError("--tasks takes one folder: give --data once.")
    tasks = find_tasks(choices.data[0], choices.tasks, limit=choices.limit)
    suite = Suite(
        open_model(),
        tasks,
        name,
        choices.json_file,
        prompts=_prompts(choices.prompts),
        seen=pairs_seen(Path(name)),
        command=shlex.join(["d2v", *sys.argv[1:]]),
    )
    to_do = suite.open_tasks()
    if done := len(tasks) - len(to_do):
        info(f"{done} of {len(tasks)} tasks are finished in {choices.json_file}")
    if to_do:
        info(_sentence(suite.estimate(), len(to_do)))
    document = _watched(suite)
    _show(document, [task.name for task in tasks], repr(suite.encoder))


def pairs_seen(folder: Path) -> Any:
    """Hashes of the pairs that a saved encoder was trained on, if it says so."""
    from decoder2vec.text.data_check import TRAINING_PAIRS_FILE

    if not (folder / TRAINING_PAIRS_FILE).is_file():
        return None
    import numpy as np

    try:
        return np.load(folder / TRAINING_PAIRS_FILE, allow_pickle=False)
    except (ValueError, EOFError):
        file = folder / TRAINING_PAIRS_FILE
        info(f"{file} cannot be read; whether the encoder was trained on these pairs is not known")
        return None


def _watched(suite: Suite) -> dict[str, Any]:
    with bars() as progress:
        bar = progress.add_task("texts", total=suite.work)

        def finished(name: str, result: dict[str, Any]) -> None:
            progress.console.print(f"{name}: {result['metric']} {result['score']:.2f}", markup=False, highlight=False)

        return suite.run(lambda count: progress.advance(bar, count), finished)


def _prompts(pairs: Sequence[str]) -> dict[str, str]:
    from decoder2vec.errors import InputError

    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--prompt takes NAME=TEXT, such as query='Find: ', not {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


def _sentence(estimate: Estimate, tasks: int) -> str:
    """How much there is to do."""
    cached = f", of which {estimate.cached:,} are in the cache" if estimate.cached else ""
    counted = math.isfinite(estimate.tokens) and estimate.tokens > 0
    tokens = f" of about {estimate.tokens:,.0f} tokens at {estimate.tokens_per_second:,.0f} tokens/s" if counted else ""
    minutes = estimate.seconds / 60
    wait = f"about {minutes:.0f} minutes" if minutes >= 1.5 else f"about {estimate.seconds:.0f} seconds"
    return f"{tasks} tasks, {estimate.texts:,} different texts{cached}; {wait} of encoding{tokens}"


def _show(document: dict[str, Any], names: Sequence[str], title: str) -> None:
    rows = []
    for name in names:
        result = document["tasks"][name]
        low, high = result["interval"]
        headline = (result["metric"], f"{result['score']:.2f}", f"{low:.1f}-{high:.1f}")
        rows.append((name, result["kind"].replace("_", " "), *headline, f"{result['seconds']:.1f}"))
    for kind, mean in document["summary"].items():
        what = "mean of four families" if kind == "average" else f"mean {kind.replace('_', ' ')}"
        rows.append((what, "", "", f"{mean:.2f}", "", ""))
    table(("task", "kind", "measure", "score", "95 %", "seconds"), rows, title)
    for name in names:
        for flag in document["tasks"][name].get("flags", []):
            info(f"{name}: {flag}")


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
    check_output_file(json_file, ".json", sources=data)
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    open_model = partial(load_any_encoder, encoder, device, **choices)
    if tasks is not None or any(file.is_dir() for file in data):
        wanted = TaskChoices(data, split_names(tasks or "all"), json_file, limit, prompt or ())
        evaluate_tasks(encoder, wanted, open_model)
    else:
        read = partial(load_scored, columns=split_names(columns), skip_bad=skip_bad, limit=limit)
        evaluate_pairs(encoder, [read(file) for file in data], json_file, open_model)


def load_scored(file: Path, columns: Sequence[str], **options: Any) -> ScoredPairs:
    """Scored pairs; lines that were left out are told of."""
    from decoder2vec.evaluation.similarity import load_pairs

    pairs = load_pairs(file, columns, **options)
    if pairs.skipped:
        info(f"{pairs.skipped} lines of {file} were left out")
    return pairs


def evaluate_pairs(name: str, files: list[ScoredPairs], json_file: Path | None, open_model: Callable[[], Any]) -> None:
    """Score files of pairs, one after the other."""
    from decoder2vec.evaluation.similarity import evaluate_sts
    from decoder2vec.storage import versions

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
    pace = round(model.stats.tokens_per_second, 1)
    return {"spec": model.spec.to_json(), "tokens": model.stats.tokens, "tokens_per_second": pace}


def _warn_of_overlap(folder: Path, files: list[ScoredPairs]) -> None:
    """Say how many pairs of each file the encoder was trained on."""
    from decoder2vec.text.data_check import count_overlap

    seen = pairs_seen(folder)
    for pairs in files if seen is not None else ():
        if count := count_overlap(pairs.left, pairs.right, seen):
            info(
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
