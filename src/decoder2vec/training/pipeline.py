"""Several trainings one after the other, each on the model that the one before it made: the stages of one file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import Notify
from decoder2vec.config import fingerprint, to_table
from decoder2vec.encoder import Encoder, check_output_folder, is_encoder_folder
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.export.base_model import describe_base_model, load_base_model
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.recipes.kv_prefix import PrefixTuning
from decoder2vec.recipes.registry import recipes
from decoder2vec.recipes.soft_prompt import SoftPromptTuning
from decoder2vec.storage import atomic_file, cache_root
from decoder2vec.training.data import TrainingData
from decoder2vec.training.plan import Plan, plan_of, read_table
from decoder2vec.training.run import RESULTS_FILE, RUN_FILE, Outcome, check_fit, train

PIPELINES = ("bidirectional",)
"""Those that come along, as files beside the recipes."""
_BESIDE_STAGES = {"name", "about", "data", "stages"}


@dataclass(frozen=True)
class Stage:
    """One training: a plan, and what it learns from."""

    name: str
    plan: Plan
    data: TrainingData


def read_stages(file: Path | None, recipe: str | None) -> dict[str, dict[str, Any]] | None:
    """The tables of a file's stages by name, or of the pipeline that a recipe is; None for a plan of one stage.

    The data that the file names beside its stages hold for all of them.
    """
    if file is None and recipe not in PIPELINES:
        if recipe not in (None, *recipes()):
            raise unknown_name("recipe", recipe, [*recipes(), *PIPELINES])
        return None
    table = read_table(file or Path(str(resources.files("decoder2vec.recipes") / f"{recipe}.toml")))
    if "stages" not in table:
        return None
    if unknown := table.keys() - _BESIDE_STAGES:
        raise unknown_name("setting beside the stages", sorted(unknown)[0], _BESIDE_STAGES)
    found: dict[str, dict[str, Any]] = {}
    for stage in table["stages"] if isinstance(table["stages"], list) else [{}]:
        name = stage.get("name") if isinstance(stage, dict) else None
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name) or name in found:
            raise InputError(
                "stages is a list of tables, [[stages]], each with a name of its own made of letters, digits, - and _."
            )
        found[name] = {**stage, "data": {**_data(table), **_data(stage)}}
    return found


def _data(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(found := table.get("data", {}), dict):
        raise InputError(f"data must be a table, not {found!r}.")
    return found


def chosen_stages(tables: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Those of the stages that were asked for, in their own order; all if none was."""
    for name in names:
        if name not in tables:
            raise unknown_name("stage", name, tables)
    return {name: table for name, table in tables.items() if not names or name in names}


def stage_plan(name: str, table: dict[str, Any], settings: Sequence[str], data: dict[str, Any]) -> Plan:
    """The plan of a stage; settings that begin with its name are put over it."""
    own = [setting.removeprefix(f"{name}.") for setting in settings if setting.startswith(f"{name}.")]
    return plan_of(json.loads(json.dumps(table)), name, own, data)


def run_stages(
    stages: Sequence[Stage],
    backbone: str,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    device: Any = None,
    dtype: str | None = None,
    overwrite: bool = False,
    notify: Notify = lambda _: None,
    **options: Any,
) -> Outcome:
    """Train them all; the last is written to `out`, the others beside it, each an encoder of its own.

    A stage that was done before, with the same settings, data, weights and number format, is not done again, even if
    that was for another encoder: many may share their first stage. Other encoders are replaced if `overwrite` says so.
    `options` go to every training: command, progress, watch.
    """
    out = out if out.name else out.absolute()  # "." has no name to call others after
    places = _places(stages, out)
    told: list[dict[str, Any]] = []
    outcome = None
    start: str | Path = backbone
    for number, (stage, place) in enumerate(zip(stages, places, strict=True), 1):
        model, copied = load_base_model(start, device=device, dtype=dtype, notify=notify)
        if number == 1:
            _check_fit(stages, model)
        key = _key(stage, model, seeds)
        told.append(_told(stage, key))
        if found := _find(key, place, anywhere=number < len(stages)):
            notify(f"{stage.name}: found in {found}")
            start, outcome = found, None
            continue
        _check_places(places[number - 1 :], overwrite=overwrite)
        notify(f"{stage.name}: {stage.plan.about or stage.plan.recipe_name}")
        about = {"stage": {"name": stage.name, "number": number, "key": key}, "stages": list(told)}
        outcome = train(
            stage.plan,
            stage.data,
            model,
            place,
            seeds=seeds,
            more=about | describe_base_model(backbone, model, is_later_stage=number > 1),
            onward_from=start,
            copy_backbone=copied,
            **options,
        )
        _remember(key, place)
        start = place
    return outcome or _read(out, device, dtype)


def stage_folder(out: Path, number: int, name: str) -> Path:
    """Where a stage before the last is written."""
    return out.with_name(f"{out.name}-stages") / f"{number}-{name}"


def _places(stages: Sequence[Stage], out: Path) -> list[Path]:
    """Where each of them is written."""
    if not stages:
        raise InputError("There is no stage to train.")
    return [*(stage_folder(out, number, stage.name) for number, stage in enumerate(stages[:-1], 1)), out]


def _told(stage: Stage, key: str) -> dict[str, Any]:
    """What those that come after it say of a stage."""
    recipe = stage.plan.recipe
    objective = recipe.loss if isinstance(recipe, Freeze) else recipe.objective.name
    told = {"name": stage.name, "recipe": stage.plan.recipe_name, "objective": objective}
    schedule = {name: getattr(recipe.training, name) for name in ("steps", "epochs", "batch", "rate")}
    return {**told, **schedule, "key": key}


def _check_fit(stages: Sequence[Stage], model: Backbone) -> None:
    """Refuse, before any is trained, a stage that cannot be, on the model as it is: only `full` may make it shorter."""
    for stage in stages[:-1]:
        if isinstance(stage.plan.recipe, SoftPromptTuning | PrefixTuning):
            raise UnsupportedError(
                f"{stage.name} trains a {stage.plan.recipe_name}, which cannot be merged into the weights; "
                "only the last stage may do that."
            )
    attention = model.attention
    for stage in stages:
        check_fit(stage.plan.recipe, stage.data, model)
    if model.attention != attention:
        model.set_attention(attention)


def _check_places(places: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse, before the first of some stages is trained, places where they must not be written."""
    for place in places:
        check_output_folder(place)
        if is_encoder_folder(place) and not (overwrite or _is_broken(place)):
            raise InputError(
                f"{place} holds an encoder that was trained with other settings, data or weights; "
                "choose another --out, or add --overwrite to replace it."
            )


def _key(stage: Stage, model: Backbone, seeds: Sequence[int]) -> str:
    """All that a stage depends on, whatever it is called."""
    does = stage.plan.recipe_name, to_table(stage.plan.recipe), _identity(stage.data)
    return fingerprint(*does, model.effective_fingerprint, str(model.dtype), list(seeds))


def _identity(data: TrainingData) -> list[Any]:
    """All that may be learned from, or chosen on."""
    pairs = [[vars(file) for file in files if file] for files in ([data.train], data.dev, data.test)]
    found: list[Any] = [data.texts, pairs, data.triplets, data.nli, list(data.scale)]
    found.append(sorted(data.concepts.concepts) if data.concepts else None)
    if contrast := data.contrast:
        parts = (contrast.anchors, contrast.positives, contrast.negatives, *contrast.groups.nonzero())
        found += [contrast.texts, [part.tolist() for part in parts]]
    return found


def _find(key: str, place: Path, *, anywhere: bool) -> Path | None:
    """Where the stage was done before: in its own place, or anywhere else."""
    return next((home for home in (place, *(_known(key) if anywhere else [])) if _is_done(home, key)), None)


def _is_done(place: Path, key: str) -> bool:
    """Does the stage stand there, done in the same way?"""
    try:
        return is_encoder_folder(place) and bool(_records(place)[0]["stage"]["key"] == key)
    except (OSError, ValueError, KeyError, TypeError):  # broken, or of a training that was no stage
        return False


def _is_broken(place: Path) -> bool:
    """Can what was written down of a training not be read?"""
    try:
        _records(place)
    except FileNotFoundError:
        return False  # an encoder that was not trained is whole without
    except (OSError, ValueError):
        return True
    return False


def _records(place: Path) -> list[dict[str, Any]]:
    """Results and record of a training."""
    found = [json.loads((place / name).read_text(encoding="utf-8")) for name in (RESULTS_FILE, RUN_FILE)]
    if not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{place} has records of another shape")
    return found


def _read(place: Path, device: Any, dtype: str | None) -> Outcome:
    results, record = _records(place)
    return Outcome(Encoder.load(place, device=device, dtype=dtype), results, record, trained=False)


def _known(key: str) -> list[Path]:
    """Where the stage was done for another encoder, if it was."""
    note = cache_root() / "stages" / key
    return [Path(note.read_text(encoding="utf-8"))] if note.is_file() else []


def _remember(key: str, place: Path) -> None:
    with atomic_file(cache_root() / "stages" / key) as note:
        note.write_text(str(place.absolute()), encoding="utf-8")
