"""From a plan to a saved encoder: seeds one by one, the best on dev kept, everything written down."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.activations.extract import Progress
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import trained_share
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder, check_output_folder, is_encoder_folder
from decoder2vec.errors import InputError
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.storage import versions
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE
from decoder2vec.training.adapting import AdapterTraining, reading_and_lesson
from decoder2vec.training.card import write_card
from decoder2vec.training.data import TrainingData
from decoder2vec.training.frozen.record import record_run
from decoder2vec.training.frozen.scoring import SeedResult
from decoder2vec.training.frozen.training import FreezeTraining
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import Plan, Recipe
from decoder2vec.training.processes import is_first, join, wait_for_all

RUN_FILE = "run.json"
RESULTS_FILE = "results.json"

Training = FreezeTraining | AdapterTraining


@dataclass(frozen=True)
class Outcome:
    """The encoder of the seed that did best on dev, and the results of all."""

    encoder: Encoder
    results: dict[str, Any]
    record: dict[str, Any]
    trained: bool = True
    """Or was it found, as it had been made before?"""


def train(
    plan: Plan,
    data: TrainingData,
    backbone: Backbone,
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    command: str = "",
    more: Mapping[str, Any] | None = None,
    onward_from: str | Path | None = None,
    copy_backbone: bool = False,
    progress: Progress = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> Outcome:
    """Train every seed, save the best as an encoder in `out`; a killed run goes on where it was.

    `more` is put into the results beside the rest, such as what a grid gave. `onward_from` is the encoder whose model
    is trained, if it is one's: what that has seen counts as seen. `copy_backbone` puts the model's weights beside the
    encoder, even where they were not trained.
    """
    if not seeds or min(seeds) < 0:
        raise InputError("Give at least one seed, and none below 0.")
    join()
    out = Path(out).absolute()
    check_output_folder(out)
    work = out.with_name(f"{out.name}.unfinished")
    if is_encoder_folder(work):
        raise InputError(f"{work} holds an encoder, and is where this run would keep its state; choose another --out.")
    _forget_logs(work)
    started = time.perf_counter()
    training = start_training(plan.recipe, data, backbone, progress)
    reading = time.perf_counter() - started
    done, best = _seeds(training, plan, seeds, work, on_progress)
    results = summary(plan, done, backbone, command)
    results |= {"best_seed": best.seed, "seconds_reading": round(reading, 2), **_said(plan, data, done), **(more or {})}
    encoder, record, copied = _result(training, best, work)
    record |= {"recipe": plan.recipe_name, "name": plan.name}
    extra_files = {
        **_logs(work),
        RESULTS_FILE: _json(results),
        RUN_FILE: _json(record),
        TRAINING_PAIRS_FILE: _array(_seen(data, onward_from)),
        "README.md": write_card(encoder, plan, results, record).encode(),
    }
    if is_first():
        encoder.save(out, copy_backbone=copied or copy_backbone, extra_files=extra_files)
    _tidy(work)
    if copied:
        encoder = Encoder.load(out, device=backbone.device, dtype=backbone.dtype)
    return Outcome(encoder, results, record)


def _said(plan: Plan, data: TrainingData, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """How long it took in all, what it learned from, and what a user should know."""
    seconds = round(sum(seed["seconds"] for seed in seeds), 2)
    notes = [*plan.notes(data), *data.notes, *_kept_starts(seeds), *_restored(seeds)]
    return {"seconds": seconds, "data": data.facts(), "notes": notes}


def _restored(seeds: list[dict[str, Any]]) -> list[str]:
    """How well marks and capitals came back, where that was learned."""
    line = "seed {}: marks and capitals restored with F1 {f1:.1%}, precision {precision:.1%}, recall {recall:.1%}"
    found = [(seed["seed"], seed["notes"].get("restoration")) for seed in seeds]
    return [line.format(number, **told) for number, told in found if told]


def _seen(data: TrainingData, before: str | Path | None) -> Any:
    """Pairs that training looked at, now and before."""
    file = Path(before) / TRAINING_PAIRS_FILE if before else None
    return np.union1d(data.seen(), np.load(file)) if file and file.is_file() else data.seen()


def _tidy(work: Path) -> None:
    """Remove what is needed no more, once no process reads it."""
    wait_for_all()
    if is_first():
        shutil.rmtree(work, ignore_errors=True)


def _seeds(
    training: Training, plan: Plan, seeds: Sequence[int], work: Path, on_progress: OnProgress
) -> tuple[list[dict[str, Any]], Any]:
    """The results of all seeds, and the seed that did best on dev.

    Only the best is held: networks and tables of many seeds would fill a GPU.
    """
    done: list[dict[str, Any]] = []
    best: Any = None
    for seed in seeds:
        result = training.run(seed, work=work, on_progress=on_progress)
        done.append(result.to_json())
        if best is None or result.dev_mean(plan.recipe.choose_by) > best.dev_mean(plan.recipe.choose_by):
            best = result
    return done, best


def start_training(
    recipe: Recipe, data: TrainingData, backbone: Backbone, progress: Progress = lambda _: None
) -> Training:
    """The training that a recipe asks for."""
    if isinstance(recipe, Freeze):
        return FreezeTraining(recipe, data, backbone, progress)
    return AdapterTraining(recipe, data, backbone, progress)


def check_fit(recipe: Recipe, data: TrainingData, backbone: Backbone) -> None:
    """Refuse what the training would refuse before its first step, as far as that can be said without reading texts."""
    if isinstance(recipe, Freeze):
        recipe.readings(backbone)
    else:
        reading_and_lesson(recipe, data, backbone)


def _result(training: Training, best: Any, work: Path) -> tuple[Encoder, dict[str, Any], bool]:
    """The encoder of the best seed, what is drawn of it, and whether its weights must be saved with it."""
    if isinstance(training, FreezeTraining):
        return as_encoder(best, training.backbone, training.recipe), record_run(training, best), False
    encoder, copied = training.saved_alone(best, work)
    return encoder, {"parameters": trained_share(best.trained, training.backbone.model)}, copied


def _forget_logs(work: Path) -> None:
    """Remove those of a run that was killed: it may have been another, and each seed knows what its own had to say."""
    if is_first():
        for file in work.glob("log-*.jsonl"):
            file.unlink()


def _logs(work: Path) -> dict[str, bytes]:
    """What was written down while seeds were trained."""
    return {file.name: file.read_bytes() for file in sorted(work.glob("log-*.jsonl"))} if work.is_dir() else {}


def as_encoder(result: SeedResult, backbone: Backbone, recipe: Freeze) -> Encoder:
    """The encoder of one seed; where all readings share a prompt, it is the encoder's own."""
    templates = {reading.template for reading in result.readings}
    readings: tuple[Reading, ...] = result.readings
    template = "{text}"
    if len(templates) == 1:
        template = templates.pop()
        readings = tuple(replace(reading, template="") for reading in readings)
    spec = EncoderSpec(backbone.name, readings, template, backbone.attention, recipe.max_length, recipe.on_overflow)
    return Encoder(backbone, spec, result.head)


def summary(plan: Plan, seeds: list[dict[str, Any]], backbone: Backbone, command: str) -> dict[str, Any]:
    """The results of all seeds, their means and standard deviations."""
    return {
        "config": plan.to_json(),
        "command": command,
        "backbone": {"name": backbone.name, "fingerprint": backbone.fingerprint},
        "seeds": seeds,
        "mean": _over(seeds, np.mean),
        "sd": _over(seeds, lambda values: np.std(values, ddof=1) if len(values) > 1 else 0.0),
        "versions": versions(),
    }


def _kept_starts(seeds: list[dict[str, Any]]) -> list[str]:
    """Seeds whose training made nothing better: their encoders are what they were before it."""
    return [
        f"seed {seed['seed']}: no state of {stage} was better than the start, which was kept"
        for seed in seeds
        for stage, history in seed["notes"].items()
        if isinstance(history, dict) and history.get("best") == -1 and history.get("scores")
    ]


def _over(seeds: list[dict[str, Any]], statistic: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in ("dev", "test"):
        names = seeds[0][part]
        found[part] = {
            name: {
                metric: round(float(statistic([seed[part][name][metric] for seed in seeds])), 2)
                for metric in ("spearman", "pearson")
            }
            for name in names
        }
        if len(names) > 1:
            means = [np.mean([scores["spearman"] for scores in seed[part].values()]) for seed in seeds]
            found[part]["all files"] = {"spearman": round(float(statistic(means)), 2)}
    found["checks"] = {
        name: round(float(statistic([seed["checks"][name] for seed in seeds])), 4) for name in seeds[0]["checks"]
    }
    return found


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _array(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
