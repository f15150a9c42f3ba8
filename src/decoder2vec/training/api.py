"""`train`: from a plan to a saved encoder. Stages run one after the other, each with one or several seeds.

A stage that was trained before with the same settings, data, teachers, weights, dtype and seeds is not trained again,
even if that was for another encoder: many plans share their first stage.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import trained_share
from decoder2vec.backbone.machine import FOUR_BIT, choose_device, choose_dtype
from decoder2vec.backbone.sources import Notify
from decoder2vec.base_model import describe_base_model, load_base_model
from decoder2vec.config import as_tuple
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import check_output_folder, encoder_path, is_encoder_folder, is_reranker_folder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.evaluation.tasks.task import Task, unique
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.reranker import Reranker
from decoder2vec.storage import atomic_file, cache_root, check_replaceable, parse_json, real_path, versions
from decoder2vec.text.data_check import (
    TRAINING_PAIRS_FILE,
    TRAINING_TEXTS_FILE,
    TextHashes,
    count_shared_texts,
    read_hashes,
)
from decoder2vec.text.files import naming_lines
from decoder2vec.training import distributed
from decoder2vec.training.card import find_licence, write_card
from decoder2vec.training.data import TrainingData
from decoder2vec.training.data_source import DataSource
from decoder2vec.training.defaults import choose_reading
from decoder2vec.training.hyperparameters import Grid, choose_by_trials, choose_from_grid
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import Plan, Stage, load_plan
from decoder2vec.training.recipes.adapter import AdapterRecipe
from decoder2vec.training.recipes.recipe import Recipe, SaveModel, TrainedModel, Trainer, check_seeds, result_key
from decoder2vec.training.results import SeedResult, best_seed, headline, result_notes, summarise
from decoder2vec.training.steps import StepFolders
from decoder2vec.training.teachers import Teacher, share_teachers

RUN_FILE = "run.json"
RESULTS_FILE = "results.json"
_CHOOSING = "choosing settings"
"""The stage of progress in which a grid or trials are tried."""


@dataclass(frozen=True)
class TrainingResult:
    """The encoder or reranker of the seed that was best on dev, and the results of all seeds."""

    model: TrainedModel
    results: dict[str, Any]
    """What `results.json` in the encoder's folder holds."""
    record: dict[str, Any]
    """What `run.json` holds: details of the best seed, for the training report."""
    trained: bool = True
    """False: the encoder was up to date, and nothing was trained."""

    @property
    def encoder(self) -> Encoder:
        """The encoder; a reranker is none."""
        if not isinstance(self.model, Encoder):
            raise InputError("A reranker was trained; use `reranker` of the result.")
        return self.model

    @property
    def reranker(self) -> Reranker:
        """The reranker that the recipe `rerank` trained."""
        if not isinstance(self.model, Reranker):
            raise InputError("An encoder was trained; use `encoder` of the result.")
        return self.model


@dataclass(frozen=True)
class Reporting:
    """Callbacks of a training, and the command that started it."""

    notify: Notify = lambda _: None
    on_progress: OnProgress = lambda _: None
    command: str = ""


@distributed.failing_together()
@share_teachers()
def train(
    plan: Plan | Recipe[Any, Any] | str | Path | None = None,
    data: TrainingData | str | Path | Sequence[str | Path] | None = None,
    backbone: Backbone | str | Path = "smollm2-135m",
    out: str | Path = "encoder",
    *,
    train: str | Path | None = None,
    dev: str | Path | Sequence[str | Path] = (),
    test: str | Path | Sequence[str | Path] = (),
    tasks: str | Path | None = None,
    columns: Sequence[str] | None = None,
    auto_dev: bool = False,
    settings: str | Sequence[str] = (),
    teachers: str | Path | Sequence[str | Path] = (),
    variant: str | None = None,
    stages: str | Sequence[str] = (),
    seeds: int | Sequence[int] = (0,),
    grid: Grid | None = None,
    trials: int = 0,
    keep: float | None = None,
    keep_better: bool = False,
    overwrite: bool = False,
    device: str | torch.device | None = None,
    dtype: str | None = None,
    notify: Notify = lambda _: None,
    on_progress: OnProgress = lambda _: None,
    command: str = "",
) -> TrainingResult:
    """Train and save an encoder, and return the best seed's with all results; called again, an interrupted run resumes.

    Args:
        plan: A recipe or its name (`freeze`, `lora`, `full`, `distill`, ...), a TOML file, or a `Plan`; else FREEZE.
        data: A folder (the working directory by default), files, each for the stages that need it, or a `TrainingData`.
        backbone: The model: built-in name, folder, .gguf file, hub id, an encoder to train further, or a `Backbone`.
        out: Folder for the encoder. The stages before the last are saved beside it, in `<out>-stages`.
        train: File to learn from, where `data` is a folder.
        dev: Files of scored pairs to select on.
        test: Files of scored pairs to evaluate once, at the end.
        tasks: Folder of tasks as for `evaluate`: how many of their texts were trained on is recorded.
        columns: Columns of the two texts and the score.
        auto_dev: Where `data` names files, also use files named dev or test beside the first of them.
        settings: `key=value` over the plan, such as `training.rate=1e-3`.
        teachers: Encoders to distil, by name or folder, where an objective learns from a teacher.
        variant: Which plan of a file that describes several.
        stages: Train only these stages of the plan.
        seeds: Train with each; the seed best on dev is saved.
        grid: Values to try by setting; the best combination on dev is trained with all seeds.
        trials: Number of Optuna trials over the plan's `[search]` table.
        keep: Share of the trained change to keep: 0.7 interpolates 70 % trained, 30 % start. By default all.
        keep_better: Save the untrained model where it is better on dev than the trained one.
        overwrite: Allow an encoder in `out` to be replaced; one that is up to date is kept and returned.
        device: cuda, mps or cpu; by default the best there is. A `Backbone` has its own.
        dtype: float32, bfloat16, or 4bit to train LoRA beside. A `Backbone` has its own.
        notify: Called with messages for the user.
        on_progress: Called after every training step.
        command: The command line, for the results file.

    Raises:
        InputError: The settings do not fit the data or the model, or `out` holds an encoder already.

    Example:
        >>> import decoder2vec as d2v
        >>> data = d2v.TrainingData(None, (), texts=("A cat sleeps.", "It rains.", "A cat naps.", "Stocks fell."))
        >>> d2v.train("lora", data, "tiny-llama", "my-encoder", settings=["objective.name=simcse"]).encoder.dim
        32
    """
    dev, test, settings, teachers, stages, seeds = map(as_tuple, (dev, test, settings, teachers, stages, seeds))
    distributed.init_processes(backbone.device if isinstance(backbone, Backbone) else choose_device(device), notify)
    folder, evaluated = _output_folder(Path(out), overwrite=overwrite), find_tasks(tasks) if tasks else []
    reporting = Reporting(notify, on_progress, command)
    loaded = _with_teachers(load_plan(plan, settings, variant=variant, stages=stages), teachers)
    loaded = choose_reading(_with_keep(loaded, keep, keep_better=keep_better), backbone, notify)
    _check_choices(loaded, seeds, chooses_settings=bool(grid or trials))
    prepared = (source := DataSource.of(data, train, dev, test, columns, auto_dev=auto_dev)).load(loaded, notify)
    _expect_phases(prepared, len(seeds), n_choices=trials + (math.prod(map(len, grid.values())) if grid else 0))
    with naming_lines(*source.paths()):
        model = _load_model(backbone, device, dtype, prepared, notify)
        prepared, extra = _choose_settings(prepared, model.backbone, grid, trials, seeds[0], reporting)
        return _train_stages(loaded.name, prepared, model, folder, seeds, overwrite, extra, evaluated, reporting)


def _expect_phases(stages: Sequence[tuple[Stage, TrainingData]], n_seeds: int, n_choices: int) -> None:
    """Announce the phases of all stages; `n_choices` settings are tried before."""
    progress = current_progress()
    for number, (stage, data) in enumerate(stages):
        name = _progress_stage(stage, stages)
        progress.expect("loading the model", stage=name)
        for _ in range(0 if number else n_choices):
            stage.recipe.expect(data.without_test(), _CHOOSING, 1)
        stage.recipe.expect(data, name, n_seeds)
        progress.expect("saving", stage=name)


def _load_model(
    backbone: Backbone | str | Path,
    device: str | torch.device | None,
    dtype: str | None,
    stages: Sequence[tuple[Stage, TrainingData]],
    notify: Notify,
) -> LoadedModel:
    """Load the model, as a part of the first stage; on the CPU if it is sharded, since it may not fit a GPU."""
    if any(isinstance(stage.recipe, AdapterRecipe) and stage.recipe.shards for stage, _ in stages):
        device = "cpu"
        if dtype in (None, "auto"):
            dtype = str(choose_dtype(distributed.process_device())).removeprefix("torch.")
    with current_progress().stage(_progress_stage(stages[0][0], stages)):
        return LoadedModel.of(backbone, device, dtype, notify)


def _progress_stage(stage: Stage, stages: Sequence[tuple[Stage, TrainingData]]) -> str:
    """The name of a stage in the progress; a single one needs none."""
    return stage.name if len(stages) > 1 else ""


def _check_choices(plan: Plan, seeds: Sequence[int], *, chooses_settings: bool) -> None:
    """Raise unless there are seeds, settings are chosen for one stage only, and all teachers exist."""
    check_seeds(seeds)
    if len(plan.stages) > 1 and chooses_settings:
        raise InputError("--grid and --trials choose the settings of one training, not of several stages.")
    for stage in plan.stages:  # a teacher that does not exist is found before texts and a model are read
        stage.recipe.teacher_fingerprints()


def _output_folder(out: Path, *, overwrite: bool) -> Path:
    """The absolute path of the folder for the encoder; raises if it must not be written."""
    folder = out.absolute()
    if folder.name == "..":  # which cannot name the folders beside it
        folder = real_path(folder)
    if _holds_model(folder) and not overwrite:
        kind = "a reranker" if is_reranker_folder(folder) else "an encoder"
        raise InputError(f"{folder} holds {kind} already; choose another --out, or add --overwrite to replace it.")
    check_output_folder(folder)
    return folder


def _with_teachers(plan: Plan, names: Sequence[str | Path]) -> Plan:
    """The plan with teachers for every stage that learns from some."""
    if not names:
        return plan
    teachers = [Teacher(str(name)) for name in names]
    recipes = [stage.recipe.with_teachers(teachers) for stage in plan.stages]
    if all(recipe is stage.recipe for recipe, stage in zip(recipes, plan.stages, strict=True)):
        raise InputError("Nothing here is distilled; use the recipe distill or general, or set objective.name=distill.")
    stages = (replace(stage, recipe=recipe) for stage, recipe in zip(plan.stages, recipes, strict=True))
    return replace(plan, stages=tuple(stages))


def _with_keep(plan: Plan, keep: float | None, *, keep_better: bool) -> Plan:
    """The plan, a single training, with what to keep of its result; without either setting the plan itself."""
    changes: dict[str, Any] = {} if keep is None else {"keep": keep}
    changes |= {"keep_better": True} if keep_better else {}
    if not changes:
        return plan
    setting = next(iter(changes))
    option = f"--{setting.replace('_', '-')}"
    if len(plan.stages) > 1:
        setting = f"{plan.stages[-1].name}.{setting}={str(changes[setting]).lower()}"
        raise InputError(f"{option} is for a single training; set it for a stage of this plan: --set {setting}.")
    (stage,) = plan.stages
    if not isinstance(stage.recipe, AdapterRecipe):
        verb = "interpolates" if keep is not None else "compares"
        raise InputError(
            f"{option} {verb} with the model before training, and {stage.recipe.name} trains something new; "
            "leave it out, or use lora, full, soft_prompt, kv_prefix, bottleneck or conv."
        )
    return replace(plan, stages=(replace(stage, recipe=replace(stage.recipe, **changes)),))


def _choose_settings(
    stages: list[tuple[Stage, TrainingData]],
    backbone: Backbone,
    grid: Grid | None,
    trials: int,
    seed: int,
    reporting: Reporting,
) -> tuple[list[tuple[Stage, TrainingData]], dict[str, Any]]:
    """The only stage with the settings best on dev, and for the results file what the grid gave."""
    if not (grid or trials):
        return stages, {}
    stage, data = stages[0]
    extra = {}
    callbacks: dict[str, Any] = {"notify": reporting.notify, "on_progress": reporting.on_progress}
    with current_progress().stage(_CHOOSING):
        if trials:
            stage = choose_by_trials(stage, data, backbone, trials, **callbacks)
        if grid:
            stage, extra["grid"] = choose_from_grid(stage, grid, data, backbone, seed=seed, **callbacks)
    current_progress().drop(_CHOOSING)
    return [(stage, data)], extra


@dataclass(frozen=True)
class LoadedModel:
    """A model to train, and where it came from."""

    backbone: Backbone
    source: str | Path
    """What the user named."""
    stands_alone: bool = False
    """Whether its weights must be saved with the encoder, since they are stored nowhere else."""
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    notify: Notify = lambda _: None

    @classmethod
    @in_phase("loading the model")
    def of(
        cls,
        source: Backbone | str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        notify: Notify = lambda _: None,
    ) -> LoadedModel:
        """Load a model, or that of an encoder with LoRA merged, without sentence tokens, which fit the old weights."""
        if isinstance(source, Backbone):
            dtype = FOUR_BIT if source.four_bit else source.dtype
            backbone = replace(source, sentence_tokens=None) if source.sentence_tokens else source
            return cls(backbone, source.name, device=source.device, dtype=dtype, notify=notify)
        with distributed.one_process_first():  # a model is downloaded, converted or merged once
            backbone, stands_alone = load_base_model(source, device=device, dtype=dtype, notify=notify)
        return cls(replace(backbone, sentence_tokens=None), source, stands_alone, device, dtype, notify)

    def next(self, folder: Path) -> LoadedModel:
        """The model that a stage has made."""
        return LoadedModel.of(folder, self.device or self.backbone.device, self.dtype, self.notify)


def _train_stages(
    plan: str,
    stages: Sequence[tuple[Stage, TrainingData]],
    model: LoadedModel,
    out: Path,
    seeds: Sequence[int],
    overwrite: bool,
    extra: dict[str, Any],
    evaluated: Sequence[Task],
    reporting: Reporting,
) -> TrainingResult:
    """Train every stage that is not up to date; the last is saved to `out`, the others beside it."""
    _check_stages(stages, model.backbone)
    folders = [*(stage_folder(out, i, stage.name) for i, (stage, _) in enumerate(stages[:-1], 1)), out]
    original = model.source
    summaries: list[dict[str, Any]] = []
    result: TrainingResult | None = None
    untrained: dict[str, Any] | None = None
    trained = out
    for number, ((stage, data), folder) in enumerate(zip(stages, folders, strict=True), 1):
        with current_progress().stage(_progress_stage(stage, stages)):
            if number > 1:
                model = model.next(trained)
            _report_attention(stage, model.backbone, reporting)
            key = result_key(stage.recipe, data, model.backbone, list(seeds))
            summaries.append(_stage_summary(stage, data, key))
            if found := _find_trained(key, folder, anywhere=number < len(stages)):
                reporting.notify(f"{stage.name}: found in {found}")
                trained, result = found, None
            else:
                _check_folders(folders[number - 1 :], overwrite=overwrite)
                if stage.recipe.training.save_every:
                    StepFolders(folder, key).prepare(overwrite=overwrite)
                if len(stages) > 1:
                    reporting.notify(f"{stage.name}: {stage.about or stage.recipe.name}")
                about = {"stage": {"name": stage.name, "number": number, "key": key}, "stages": list(summaries)}
                about |= describe_base_model(original, model.backbone, is_later_stage=number > 1)
                about |= _describe_place(plan, stages, number, untrained)
                result = _train_stage(stage, data, model, folder, seeds, extra | about, evaluated, reporting)
                if distributed.is_main_process():
                    _remember_trained(key, folder)
                trained = folder
            if number == 1:
                untrained = best_seed(_read_documents(trained)[0]).get("untrained")
        current_progress().drop(_progress_stage(stage, stages))
        _release_teachers(stage, stages[number:])
    return result or _load_result(out, model)


def _describe_place(
    plan: str, stages: Sequence[tuple[Stage, TrainingData]], number: int, untrained: dict[str, Any] | None
) -> dict[str, Any]:
    """In the results of a stage of several: the plan, and what the stage is compared with.

    That is the untrained model, where the first stage has scored it on the same pairs, else the result of the stage
    before.
    """
    if len(stages) == 1:
        return {}
    stage, data = stages[number - 1]
    place: dict[str, Any] = {"plan": plan if number == len(stages) else f"{plan}, stage {stage.name}"}
    if number > 1:
        place["start"] = {"name": f"the model after {stages[number - 2][0].name}"}
        first = stages[0][1]
        if untrained and (data.dev, data.test) == (first.dev, first.test):
            place["start"] = {"name": "untrained", "scores": untrained}
    return place


def _release_teachers(stage: Stage, later: Sequence[tuple[Stage, TrainingData]]) -> None:
    """Let go of the teachers of a stage that no later one learns from."""
    needed = {teacher for other, _ in later for teacher in other.recipe.used_teachers()}
    for teacher in set(stage.recipe.used_teachers()) - needed:
        teacher.release()


def _train_stage(
    stage: Stage,
    data: TrainingData,
    model: LoadedModel,
    out: Path,
    seeds: Sequence[int],
    extra: dict[str, Any],
    evaluated: Sequence[Task],
    reporting: Reporting,
) -> TrainingResult:
    """Train every seed and save the one best on dev."""
    work = out.with_name(f"{out.name}.unfinished")
    check_replaceable(work, ("*.safetensors", "log-*.jsonl", "model/*"))
    _remove_logs(work)
    seen_texts = _with_earlier(data.hash_texts(), model.source, TRAINING_TEXTS_FILE)
    seen = {
        TRAINING_PAIRS_FILE: _npy_bytes(_with_earlier(data.hash_pairs(), model.source, TRAINING_PAIRS_FILE)),
        TRAINING_TEXTS_FILE: _npy_bytes(seen_texts),
    }
    started = time.perf_counter()
    trainer = Trainer(stage.recipe, data, model.backbone)
    seconds_reading = time.perf_counter() - started
    steps = StepFolders(out, extra["stage"]["key"], seen, model.stands_alone)
    seed_results, best = _run_seeds(trainer, seeds, work, reporting.on_progress, steps.save)
    if stage.recipe.training.save_every:
        reporting.notify(f"the encoders of {len(steps.found())} steps are in {steps.folder}")
    results = {
        "config": stage.to_json(),
        "command": reporting.command,
        "backbone": {"name": model.backbone.name, "fingerprint": model.backbone.fingerprint},
        **summarise(seed_results),
        "versions": versions(),
        **({"processes": distributed.world_size()} if distributed.world_size() > 1 else {}),
        "best_seed": best.seed,
        "seconds_reading": round(seconds_reading, 2),
        "seconds": round(sum(seed["seconds"] for seed in seed_results), 2),
        "data": data.describe(),
        "notes": [*stage.recipe.data_notes(data, stage.settings_prefix), *data.notes, *result_notes(seed_results)],
        **extra,
        "overlap": _measure_overlap(data, evaluated, seen_texts),
    }
    results["headline"] = headline(results)
    with current_progress().phase("saving"):
        exported, has_own_weights = trainer.export(best, work)
        share = trained_share(best.n_trained, model.backbone.model, added=stage.recipe.adds_parameters)
        record = {"parameters": share, **trainer.record(best)}
        record |= {"recipe": stage.recipe.name, "name": results.get("plan", stage.name)}
        files = {
            **_logs(work),
            RESULTS_FILE: _json_bytes(results),
            RUN_FILE: _json_bytes(record),
            **seen,
            "README.md": write_card(exported, stage, results, record).encode(),
        }
        if distributed.is_main_process():
            exported.save(out, copy_backbone=has_own_weights or model.stands_alone, extra_files=files)
        distributed.barrier()
        if distributed.is_main_process():
            shutil.rmtree(work, ignore_errors=True)
        if has_own_weights:
            exported = _load_trained(out, model.backbone.device, model.backbone.dtype)
    return TrainingResult(exported, results, record)


def _run_seeds(
    trainer: Trainer[Any, Any], seeds: Sequence[int], work: Path, on_progress: OnProgress, save_step: SaveModel
) -> tuple[list[dict[str, Any]], SeedResult]:
    """The results of all seeds as JSON, and the seed best on dev, the only one in memory; the first saves its steps."""
    documents: list[dict[str, Any]] = []
    best: SeedResult | None = None
    metric = trainer.recipe.choose_by
    for seed in seeds:
        result = trainer.run(
            seed, work=work, on_progress=on_progress, save_step=save_step if seed == seeds[0] else None
        )
        trainer.compare_untrained(result)
        documents.append(result.to_json())
        if best is None or result.selection_score(metric) > best.selection_score(metric):
            best = result
    assert best is not None
    return documents, best


def stage_folder(out: Path, number: int, name: str) -> Path:
    """Where a stage before the last is saved."""
    return out.with_name(f"{out.name}-stages") / f"{number}-{name}"


def _check_stages(stages: Sequence[tuple[Stage, TrainingData]], backbone: Backbone) -> None:
    """Raise, before any stage is trained, if one of them cannot be; only `full` may make the model shorter later."""
    for stage, _ in stages[:-1]:
        if not stage.recipe.mergeable:
            raise UnsupportedError(
                f"{stage.name} trains a {stage.recipe.name}, which cannot be merged into the weights; "
                "only the last stage may do that."
            )
    attention = backbone.attention
    for stage, data in stages:
        stage.recipe.check(data, backbone)
    if backbone.attention != attention:
        backbone.set_attention(attention)


def _check_folders(folders: Sequence[Path], *, overwrite: bool) -> None:
    """Raise, before a stage is trained, if the folder of that stage or of a later one must not be written."""
    for folder in folders:
        check_output_folder(folder)
        if _holds_model(folder) and not (overwrite or _is_broken(folder)):
            raise InputError(
                f"{folder} holds an encoder that was trained with other settings, data or weights; "
                "choose another --out, or add --overwrite to replace it."
            )


def _report_attention(stage: Stage, backbone: Backbone, reporting: Reporting) -> None:
    """Tell the user if a bidirectional model, such as an encoder's, is trained with other attention."""
    attention = stage.recipe.attention or backbone.attention
    if backbone.attention not in ("causal", attention):
        reporting.notify(
            f"the model's attention is {backbone.attention}, this training's {attention}; "
            f"--set {stage.settings_prefix}attention={backbone.attention} keeps it"
        )


def _stage_summary(stage: Stage, data: TrainingData, key: str) -> dict[str, Any]:
    """A stage in its results and in those of the stages that follow it."""
    recipe = stage.recipe
    summary: dict[str, Any] = {"name": stage.name, "recipe": recipe.name, "objective": recipe.objective_name}
    summary |= {name: getattr(recipe.training, name) for name in ("steps", "epochs", "batch", "rate")}
    summary |= {"key": key, "data": data.describe()}
    if teachers := recipe.used_teachers():
        summary["teachers"] = [{"name": teacher.name, "licence": find_licence(teacher.name)} for teacher in teachers]
    return summary


def _find_trained(key: str, folder: Path, *, anywhere: bool) -> Path | None:
    """The folder of a stage that was trained before: `folder`, or (`anywhere`) that of another encoder."""
    note = cache_root() / "stages" / key
    elsewhere = [Path(note.read_text(encoding="utf-8"))] if anywhere and note.is_file() else []
    return next((path for path in (folder, *elsewhere) if _is_trained(path, key)), None)


def _remember_trained(key: str, folder: Path) -> None:
    with atomic_file(cache_root() / "stages" / key) as note:
        note.write_text(str(folder.absolute()), encoding="utf-8")


def _is_trained(folder: Path, key: str) -> bool:
    """Whether the folder holds the result of the stage with that key."""
    try:
        return _holds_model(folder) and bool(_read_documents(folder)[0]["stage"]["key"] == key)
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or of a version that wrote no key
        return False


def _is_broken(folder: Path) -> bool:
    """Whether the results of a training cannot be read."""
    try:
        _read_documents(folder)
    except FileNotFoundError:
        return False  # an encoder that was not trained has none
    except (OSError, ValueError):
        return True
    return False


def _read_documents(folder: Path) -> list[dict[str, Any]]:
    """Results and record of a training."""
    documents = [parse_json((folder / name).read_text(encoding="utf-8")) for name in (RESULTS_FILE, RUN_FILE)]
    if not all(isinstance(document, dict) for document in documents):
        raise ValueError(f"{folder} has results of another shape")
    return documents


def _load_result(folder: Path, model: LoadedModel) -> TrainingResult:
    results, record = _read_documents(folder)
    device = model.device or model.backbone.device
    return TrainingResult(_load_trained(folder, device, model.dtype), results, record, trained=False)


def _holds_model(folder: Path) -> bool:
    return is_encoder_folder(folder) or is_reranker_folder(folder)


def _load_trained(folder: Path, device: Any, dtype: Any) -> TrainedModel:
    kind = Reranker if is_reranker_folder(folder) else Encoder
    return kind.load(folder, device=device, dtype=dtype)  # type: ignore[attr-defined,no-any-return]


def _with_earlier(hashes: NDArray[np.uint64], source: str | Path, name: str) -> NDArray[np.uint64]:
    """Hashes of what training sees, and those in the file of that name of the encoder it starts from."""
    earlier = read_hashes(encoder_path(source) / name)
    return hashes if earlier is None else np.union1d(hashes, earlier)


def _measure_overlap(data: TrainingData, tasks: Sequence[Task], seen: TextHashes) -> dict[str, dict[str, int]]:
    """How many of the different texts of each file and task were trained on, here or before."""
    evaluated = [(pairs.name, pairs.texts()) for pairs in (*data.dev, *data.test)]
    evaluated += [(task.name, unique(*task.texts().values())) for task in tasks]
    counts = {name: count_shared_texts(texts, seen) for name, texts in evaluated}
    return {name: {"shared": shared, "texts": total} for name, (shared, total) in counts.items()}


def _remove_logs(work: Path) -> None:
    """Remove logs of an interrupted run, which may have been another; checkpoints hold the lines that count."""
    if distributed.is_main_process():
        for file in work.glob("log-*.jsonl"):
            file.unlink()


def _logs(work: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(work.glob("log-*.jsonl"))} if work.is_dir() else {}


def _json_bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _npy_bytes(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
