"""`d2v train`: make an encoder of a model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Device, Dtype, split_names
from decoder2vec.cli.output import info, is_main_process, show_progress, table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.training.api import TrainingResult
    from decoder2vec.training.loop import TrainingProgress


def train(
    plan: Annotated[
        Path | None, typer.Argument(help="A plan (.toml); without one, an embedding from scored pairs.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Built-in name, model folder, .gguf file, hub id, or an encoder to train further.")
    ] = "smollm2-135m",
    recipe: Annotated[str | None, typer.Option(help="Without a plan: freeze, lora, distill, general, ...")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of the plan's files, or a file to learn from; files may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the trained encoder.")] = Path("encoder"),
    train_file: Annotated[str | None, typer.Option("--train", help="Pairs or triplets to learn from.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="Scored pairs to select on; may be repeated.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Scored pairs to evaluate once at the end.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of tasks: count their texts that were trained on.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names of the two texts and the score.")] = None,
    auto_dev: Annotated[bool, typer.Option("--auto-dev", help="Also use dev.* and test.* beside --data FILE.")] = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value over the plan: loss=mse.")] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(help="Encoder to distil from: folder, name, URL#model or file of vectors; may be repeated."),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Which plan of a file that describes several.")] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; the best on dev is kept.")] = "0",
    grid: Annotated[list[str] | None, typer.Option(help="training.rate=0.02,0.01: try each, chosen on dev.")] = None,
    trials: Annotated[int, typer.Option(help="Try this many settings from the plan's search table with Optuna.")] = 0,
    keep: Annotated[
        float | None, typer.Option(help="Keep this share of the change: 0.7 is 70 % trained, 30 % the start.")
    ] = None,
    keep_better: Annotated[bool, typer.Option("--keep-better", help="Save the start if it is better on dev.")] = False,
    results: Annotated[Path | None, typer.Option(help="Also write the results (.json) here.")] = None,
    stages: Annotated[str | None, typer.Option(help="Of a plan with stages, only these: mntp,simcse.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoder that is there already.")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Train an encoder or a reranker, by a plan or by flags: from cached latents, or by adapting the model."""
    check_output_file(results, ".json", sources=[*(data or []), train_file, plan, *(dev or []), *(test or [])])
    if plan and plan.suffix != ".toml" and not plan.exists():
        raise InputError(f"There is no plan {plan}; to train the model of that name, write --backbone {plan}.")
    if plan and recipe:
        raise InputError(f"The plan {plan} names its recipe already; leave out --recipe.")
    with show_progress():
        from decoder2vec.training.api import train as train_encoder
        from decoder2vec.training.hyperparameters import parse_grid

        result = train_encoder(
            plan or recipe,
            data or None,
            backbone,
            out,
            train=train_file,
            dev=dev or (),
            test=test or (),
            tasks=tasks,
            columns=split_names(columns) if columns is not None else None,
            auto_dev=auto_dev,
            settings=setting or (),
            teachers=teacher or (),
            variant=variant,
            # a list without a name is an unknown stage, and the error names those of the plan
            stages=() if stages is None else split_names(stages) or (stages,),
            seeds=_seeds(seeds),
            grid=parse_grid(grid or ()),
            trials=trials,
            keep=keep,
            keep_better=keep_better,
            overwrite=overwrite,
            device=device,
            dtype=dtype,
            notify=info,
            on_progress=_ResumeMessage(),
            command="d2v " + shlex.join(sys.argv[1:]),
        )
    if results and is_main_process():
        write_json(results, result.results)
    _print(result, out)


class _ResumeMessage:
    """Prints from which step a training resumes."""

    def __init__(self) -> None:
        self._stage, self._step = "", 0

    def __call__(self, state: TrainingProgress) -> None:
        is_first = state.stage != self._stage or state.step < self._step
        if is_first and 1 < state.step < state.steps:
            info(f"{state.stage}: resuming from step {state.step - 1} of {state.steps}")
        self._stage, self._step = state.stage, state.step


def _print(result: TrainingResult, out: Path) -> None:
    from decoder2vec.training.card import score_rows
    from decoder2vec.training.results import Improvement

    results, share = result.results, result.record["parameters"]
    name = results.get("plan", results["config"]["name"])
    title = f"{name} on {results['backbone']['name']}, {len(results['seeds'])} seed(s)"
    improvement = Improvement.of(results)
    if improvement and improvement.is_worse:
        start = improvement.start_name
        title += f": worse than {'the untrained model' if start == 'untrained' else start}"
    if rows := score_rows(results):
        table(("", "file", "Spearman", "Pearson"), rows, title)
    for note in results["notes"]:
        if note.startswith("seed "):
            info(note)
    for name, value in results["mean"]["checks"].items():
        info(f"{name}: mean score {value:.3f}")
    if not result.trained:
        info(f"Nothing to do: {out} is up to date (same settings, data and weights).")
        return
    info(f"{share['trained']:,} parameters trained, {share['percent']} % of the encoder's {share['all']:,}")
    kind = "reranker" if results["config"]["recipe"] == "rerank" else "encoder"
    info(f"wrote the {kind} {out} (best seed{' on dev' if results['mean']['dev'] else ''}: {results['best_seed']})")
    if improvement:
        can_keep = improvement.is_worse and results["config"]["recipe"] != "freeze"
        info(f"{improvement}{'; --keep-better saves the better one' if can_keep else ''}")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in split_names(text)]
    except ValueError:
        raise InputError(f"--seeds takes whole numbers such as 0,1,2, not {text!r}.") from None
