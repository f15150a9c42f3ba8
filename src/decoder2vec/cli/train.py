"""`d2v train`: make an encoder of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import Device, split_names
from decoder2vec.cli.output import TrainingWatch, bars, info, table
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.training.data import TrainingData
    from decoder2vec.training.plan import Plan
    from decoder2vec.training.run import Outcome


def train(
    plan: Annotated[
        Path | None, typer.Argument(help="A plan (.toml); without one, an embedding from scored pairs.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Built-in name, model folder, .gguf file, hub id, or an encoder to go on from.")
    ] = "smollm2-135m",
    recipe: Annotated[str | None, typer.Option(help="Without a plan: freeze, lora, bidirectional, ...")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the plan's files, or one file to learn from.")] = Path("."),
    out: Annotated[Path, typer.Option(help="Folder for the trained encoder.")] = Path("encoder"),
    train_file: Annotated[str | None, typer.Option("--train", help="Pairs or triplets to learn from.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="Scored pairs to choose on; may be repeated.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Scored pairs to score once at the end.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names of the two texts and the score.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value over the plan: loss=mse.")] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; the best on dev is kept.")] = "0",
    grid: Annotated[list[str] | None, typer.Option(help="training.rate=0.02,0.01: try each, chosen on dev.")] = None,
    search: Annotated[int, typer.Option(help="Try this many settings from the plan's [search] first.")] = 0,
    results: Annotated[Path | None, typer.Option(help="Also write the results (.json) here.")] = None,
    stages: Annotated[str | None, typer.Option(help="Of a plan with stages, only these: mntp,simcse.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoder that is there already.")] = False,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, or 4bit to train LoRA beside.")] = None,
) -> None:
    """Train an encoder, by a plan or by flags: from cached latents, or by adapting the model."""
    _check_out(out, overwrite)
    check_output_file(results, ".json", sources=[data, train_file, plan, *(dev or []), *(test or [])])
    tables = _stages_of(plan, recipe, stages, one_training=bool(grid or search))
    given = _Given.of(data, train_file, dev or [], test or [], columns)
    settings, numbers = setting or [], _seeds(seeds)
    asked = _Asked(backbone, out, numbers, device, dtype, overwrite)
    if tables:
        outcome = _train_stages(tables, stages, given, settings, asked)
    else:
        chosen, learned = given.plan_and_data(lambda files: _plan(plan, recipe, settings, files))
        outcome = _train_one(chosen, learned, asked, search=search, grid=grid or [])
    if results:
        write_json(results, outcome.results)
    _print(outcome, out)


@dataclass(frozen=True)
class _Asked:
    """What is trained, where the result goes, and how it is computed."""

    backbone: str
    out: Path
    seeds: list[int]
    device: str | None
    dtype: str | None
    overwrite: bool


def _train_one(plan: Plan, data: TrainingData, asked: _Asked, *, search: int, grid: list[str]) -> Outcome:
    """A plan without stages."""
    from decoder2vec.export.base_model import describe_base_model, load_base_model
    from decoder2vec.training.run import train

    model, copied = load_base_model(asked.backbone, device=asked.device, dtype=asked.dtype, notify=info)
    _say_direction(plan, model)
    with bars() as progress:
        on_progress = TrainingWatch(progress)
        first = (asked.seeds or [0])[0]
        plan, more = _chosen(plan, data, model, on_progress, search=search, grid=grid, seed=first)
        return train(
            plan,
            data,
            model,
            asked.out,
            seeds=asked.seeds,
            command=_command(),
            more=more | describe_base_model(asked.backbone, model),
            onward_from=asked.backbone,
            copy_backbone=copied,
            progress=on_progress.read,
            on_progress=on_progress,
        )


def _stages_of(
    plan: Path | None, recipe: str | None, names: str | None, *, one_training: bool
) -> dict[str, dict[str, Any]] | None:
    """The tables of a plan's stages, if it has any; options that do not go together are refused."""
    from decoder2vec.training.pipeline import read_stages

    if plan and recipe:
        raise InputError(f"The plan {plan} names its recipe already; leave out --recipe.")
    tables = read_stages(plan, recipe)
    if tables and one_training:
        raise InputError("--grid and --search choose the settings of one training, not of several stages.")
    if names is not None and not tables:
        raise InputError(f"--stages {names!r} chooses among the stages of a plan, and this one has none.")
    if names is not None and tables and not split_names(names):
        raise InputError(f"--stages {names!r} names no stage; there are {', '.join(tables)}.")
    return tables


def _say_direction(plan: Plan, model: Backbone) -> None:
    """A model that looks both ways, such as an encoder's, would otherwise turn causal without a word."""
    wanted = getattr(plan.recipe, "attention", model.attention)
    if model.attention not in ("causal", wanted):
        info(f"the model looks {model.attention}, this training {wanted}; --set attention={model.attention} keeps it")


def _plan(file: Path | None, recipe: str | None, settings: list[str], files: dict[str, Any]) -> Plan:
    from decoder2vec.training.plan import read_plan

    return read_plan(file, settings, files, recipe)


def _train_stages(
    tables: dict[str, dict[str, Any]],
    names: str | None,
    given: _Given,
    settings: list[str],
    asked: _Asked,
) -> Outcome:
    """All stages, or those that are named."""
    from decoder2vec.training.pipeline import Stage, chosen_stages, run_stages, stage_plan

    for setting in settings:
        stage, _, key = setting.partition("=")[0].partition(".")
        if stage not in tables:
            raise InputError(f"--set {setting} must begin with the name of a stage: {', '.join(tables)}.")
        if not key:
            raise InputError(f"--set {setting} names a stage but no setting of it: {stage}.training.steps=3.")
    plans = {name: stage_plan(name, tables[name], settings, {}) for name in tables}  # settings of all are looked at
    chosen = chosen_stages(tables, split_names(names) if names else [])
    if given.learned and not any("corpus" in plans[name].wants() for name in chosen):
        raise InputError(f"No stage learns from plain texts, so {given.learned} is not for them; name files in [data].")
    ready = []
    for name in chosen:
        plan, data = given.plan_and_data(partial(stage_plan, name, tables[name], settings), only_texts=True)
        ready.append(Stage(name, plan, data))
    with bars() as progress:
        on_progress = TrainingWatch(progress)
        return run_stages(
            ready,
            asked.backbone,
            asked.out,
            seeds=asked.seeds,
            device=asked.device,
            dtype=asked.dtype,
            overwrite=asked.overwrite,
            notify=info,
            command=_command(),
            progress=on_progress.read,
            on_progress=on_progress,
        )


@dataclass(frozen=True)
class _Given:
    """The files that were named on the command line."""

    folder: Path
    learned: str | None
    dev: list[str]
    test: list[str]
    names: dict[str, Any]

    @classmethod
    def of(cls, data: Path, train: str | None, dev: list[str], test: list[str], columns: str | None) -> _Given:
        """`data` is the folder of the plan's files, or the one file to learn from."""
        if data.is_file():
            if train:
                raise InputError(f"--data {data} and --train {train} both name what to train on; give one of them.")
            train, data = str(data), data.parent
        elif not data.is_dir():
            raise DataFileError(f"There is no file or folder {data}.")
        names = {"columns": split_names(columns)} if columns is not None else {}  # else those of the plan
        return cls(data, train, dev, test, names)

    def plan_and_data(
        self, read: Callable[[dict[str, Any]], Plan], *, only_texts: bool = False
    ) -> tuple[Plan, TrainingData]:
        """A plan with these files put into it, and its data; the file to learn from may be one of plain texts only."""
        from decoder2vec.training.data import load_data

        role = _ROLES.get(next(iter(read({}).wants()), ""), "train")
        learned = self.learned if role == "texts" or not only_texts else None
        plan = read(_given_files(self.folder, {role: learned}, self.dev, self.test) | self.names)
        data = load_data(self.folder, plan.data, wants=plan.wants())
        for note in (*plan.notes(data), *data.notes):
            info(note)
        return plan, data


_ROLES = {"contrast": "triplets", "corpus": "texts"}
"""What the one file to learn from is called in a plan, by what the recipe wants; else it is `train`."""


def _chosen(
    plan: Plan,
    data: TrainingData,
    model: Backbone,
    on_progress: TrainingWatch,
    *,
    search: int,
    grid: list[str],
    seed: int,
) -> tuple[Plan, dict[str, Any]]:
    """The plan with settings that were searched for, and what the search found."""
    if search:
        from decoder2vec.training.search import search_plan

        plan = search_plan(plan, data, model, search, notify=info, on_progress=on_progress)
    if not grid:
        return plan, {}
    from decoder2vec.training.grid import choose_from_grid, parse_grid

    plan, tried = choose_from_grid(plan, parse_grid(grid), data, model, seed=seed, notify=info, on_progress=on_progress)
    return plan, {"grid": tried}


def _print(outcome: Outcome, out: Path) -> None:
    from decoder2vec.training.card import score_rows

    found, share = outcome.results, outcome.record["parameters"]
    title = f"{found['config']['name']} on {found['backbone']['name']}, {len(found['seeds'])} seed(s)"
    if rows := score_rows(found):
        table(("", "file", "Spearman", "Pearson"), rows, title)
    for note in found["notes"]:
        if note.startswith("seed "):
            info(note)
    for name, value in found["mean"]["checks"].items():
        info(f"{name}: mean score {value:.3f}")
    if not outcome.trained:
        info(f"nothing was to be done: {out} was trained before with the same settings, data and weights")
        return
    info(f"{share['trained']:,} numbers trained, {share['percent']} % of the model; {found['seconds']} s of training")
    info(f"wrote the encoder {out} (best seed{' on dev' if found['mean']['dev'] else ''}: {found['best_seed']})")


def _given_files(folder: Path, learned: dict[str, str | None], dev: list[str], test: list[str]) -> dict[str, Any]:
    """Files named on the command line: paths from here, which must exist; told as paths from the data folder."""
    import os

    for name in filter(None, [*learned.values(), *dev, *test]):
        if not Path(name).is_file():
            raise DataFileError(f"There is no file {name}.")
    given: dict[str, Any] = {role: os.path.relpath(name, folder) for role, name in learned.items() if name}
    for role, names in (("dev", dev), ("test", test)):
        if names:
            given[role] = [os.path.relpath(name, folder) for name in names]
    return given


def _check_out(out: Path, overwrite: bool) -> None:
    from decoder2vec.encoder import check_output_folder, is_encoder_folder

    if is_encoder_folder(out) and not overwrite:
        raise InputError(f"{out} holds an encoder already; choose another --out, or add --overwrite to replace it.")
    check_output_folder(out)


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in split_names(text)]
    except ValueError:
        raise InputError(f"--seeds takes whole numbers such as 0,1,2, not {text!r}.") from None


def _command() -> str:
    import shlex

    return "d2v " + shlex.join(sys.argv[1:])
