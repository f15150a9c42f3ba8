"""`d2v train`: make an encoder of a model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import Device, Dtype, split_names
from decoder2vec.cli.output import info, is_main_process, show_progress, table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.training.api import TrainingResult
    from decoder2vec.training.loop import TrainingProgress


_PlanFile = Annotated[Path | None, typer.Argument(help="A plan (.toml); without one, an embedding from scored pairs.")]
_Model = Annotated[
    str, typer.Option(help="Built-in name, model folder, .gguf file, hub id, or an encoder to train further.")
]
_Data = Annotated[
    list[Path] | None,
    typer.Option(help="Folder of the plan's files, or a file to learn from; files may be repeated."),
]
_Teachers = Annotated[
    list[str] | None,
    typer.Option(help="Encoder to distil from: folder, name, URL#model or file of vectors; may be repeated."),
]
_Keep = Annotated[
    float | None, typer.Option(help="Keep this share of the change: 0.7 is 70 % trained, 30 % the start.")
]
_Curve = Annotated[
    str | None,
    typer.Option(help="Compare --recipes at these numbers of examples, 50,200,1000,all; no encoder is saved."),
]


def train(
    plan: _PlanFile = None,
    backbone: _Model = "smollm2-135m",
    recipe: Annotated[str | None, typer.Option(help="Without a plan: freeze, lora, distill, general, ...")] = None,
    data: _Data = None,
    out: Annotated[Path, typer.Option(help="Folder for the trained encoder.")] = Path("encoder"),
    train_file: Annotated[str | None, typer.Option("--train", help="Pairs or triplets to learn from.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="Scored pairs to select on; may be repeated.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Scored pairs to evaluate once at the end.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of tasks: count their texts that were trained on.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names of the two texts and the score.")] = None,
    auto_dev: Annotated[bool, typer.Option("--auto-dev", help="Also use dev.* and test.* beside --data FILE.")] = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value over the plan: loss=mse.")] = None,
    teacher: _Teachers = None,
    variant: Annotated[str | None, typer.Option(help="Which plan of a file that describes several.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Comma-separated seeds; the best on dev is kept. By default 0; for a curve 0,1,2."),
    ] = None,
    grid: Annotated[list[str] | None, typer.Option(help="training.rate=0.02,0.01: try each, chosen on dev.")] = None,
    trials: Annotated[int, typer.Option(help="Try this many settings from the plan's search table with Optuna.")] = 0,
    keep: _Keep = None,
    keep_better: Annotated[bool, typer.Option("--keep-better", help="Save the start if it is better on dev.")] = False,
    results: Annotated[Path | None, typer.Option(help="Also write the results (.json) here.")] = None,
    stages: Annotated[str | None, typer.Option(help="Of a plan with stages, only these: mntp,simcse.")] = None,
    curve: _Curve = None,
    recipes: Annotated[
        str | None, typer.Option(help="With --curve: freeze,soft_prompt,lora,bottleneck,conv,full.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoder that is there already.")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Train an encoder or a reranker, by a plan or by flags: from cached latents, or by adapting the model."""
    check_output_file(results, ".json", sources=[*(data or []), train_file, plan, *(dev or []), *(test or [])])
    options: dict[str, Any] = {"train": train_file, "dev": dev or (), "test": test or (), "auto_dev": auto_dev}
    options |= {"columns": split_names(columns) if columns is not None else None, "settings": setting or ()}
    options |= {"device": device, "dtype": dtype, "notify": info, "command": "d2v " + shlex.join(sys.argv[1:])}
    one_training: dict[str, Any] = {
        "tasks": tasks,
        "teachers": teacher or (),
        "variant": variant,
        "trials": trials,
        "keep": keep,
    }
    one_training |= {"keep_better": keep_better, "stages": stages, "overwrite": overwrite}
    if curve is not None:
        refused: dict[str, Any] = {"A plan": plan, "--recipe": recipe, "--teacher": teacher}
        _refuse_with_curve(refused | {f"--{name.replace('_', '-')}": value for name, value in one_training.items()})
        _draw_curve(curve, recipes, data or None, backbone, out, grid or (), seeds, results, options)
        return
    if recipes is not None:
        raise InputError("--recipes are those of a learning curve; add --curve 50,200,1000,all, or name one --recipe.")
    if plan and plan.suffix != ".toml" and not plan.exists():
        raise InputError(f"There is no plan {plan}; to train the model of that name, write --backbone {plan}.")
    if plan and recipe:
        raise InputError(f"The plan {plan} names its recipe already; leave out --recipe.")
    # a list without a name is an unknown stage, and the error names those of the plan
    one_training["stages"] = () if stages is None else split_names(stages) or (stages,)
    with show_progress(keeps_work=True):
        from decoder2vec.training.api import train as train_encoder
        from decoder2vec.training.hyperparameters import parse_grid

        options |= {
            "grid": parse_grid(grid or ()),
            "seeds": _seeds("0" if seeds is None else seeds),
            "on_progress": _ResumeMessage(),
        }
        result = train_encoder(plan or recipe, data or None, backbone, out, **options, **one_training)
    if results and is_main_process():
        write_json(results, result.results)
    _print(result, out)


def _refuse_with_curve(options: dict[str, Any]) -> None:
    """Raise if an option was given that a learning curve cannot take."""
    if option := next((name for name, value in options.items() if value), None):
        raise InputError(f"{option} is for a single training, and a curve trains several --recipes; leave it out.")


def _draw_curve(
    sizes: str,
    recipes: str | None,
    data: list[Path] | None,
    backbone: str,
    out: Path,
    grid: Sequence[str],
    seeds: str | None,
    results: Path | None,
    options: dict[str, Any],
) -> None:
    """Compute a learning curve, and print it."""
    folder = Path("curve") if out == Path("encoder") else out
    with show_progress(keeps_work=True):
        from decoder2vec.training.curve import RECIPES, learning_curve, parse_sizes
        from decoder2vec.training.hyperparameters import parse_grid

        names = split_names(recipes) if recipes is not None else RECIPES
        options |= {
            "grid": parse_grid(grid),
            "seeds": _seeds("0,1,2" if seeds is None else seeds),
            "on_progress": _ResumeMessage(),
        }
        curve = learning_curve(data, backbone, folder, sizes=parse_sizes(sizes), recipes=names, **options)
    if results:
        write_json(results, curve.document)
    rows = []
    for recipe in curve.recipes:
        points = {point["size"]: point for point in curve.document["points"] if point["recipe"] == recipe}
        rows.append((recipe, *(_cell(points[size][curve.shown]) for size in curve.sizes)))
    title = f"Spearman on {curve.shown}, mean over seeds ± half of the 95 % interval"
    table(("", *(f"{size:,}" for size in curve.sizes)), rows, title)
    info(curve.sentence())
    for line in curve.forecast_lines():
        info(line)
    info(f"wrote {folder}/curve.json and {folder}/curve.png")


def _cell(scores: dict[str, Any]) -> str:
    if scores["mean"] is None:
        return "diverged"
    half = scores["half_interval"]
    return f"{scores['mean']:.1f}" + ("" if half is None else f" ± {half:.1f}")


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
