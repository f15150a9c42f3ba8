"""From a plan to a saved encoder: seeds one by one, the best on dev kept, everything written down."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.activations.extract import Progress
from decoder2vec.backbone.load import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.versions import versions
from decoder2vec.folder import is_encoder
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.spec import EncoderSpec, Reading
from decoder2vec.text.overlap import SEEN_FILE
from decoder2vec.training.card import write_card
from decoder2vec.training.data import TrainingData
from decoder2vec.training.freeze import FreezeTraining
from decoder2vec.training.loop import Watch
from decoder2vec.training.plan import Plan
from decoder2vec.training.record import record_run
from decoder2vec.training.scoring import SeedResult

RUN_FILE = "run.json"
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class Outcome:
    """The encoder of the seed that did best on dev, and the results of all."""

    encoder: Encoder
    results: dict[str, Any]
    record: dict[str, Any]


def train(
    plan: Plan,
    data: TrainingData,
    backbone: Backbone,
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    command: str = "",
    progress: Progress = lambda _: None,
    watch: Watch = lambda _: None,
) -> Outcome:
    """Train every seed, save the best as an encoder in `out`; a killed run goes on where it was."""
    if not seeds or min(seeds) < 0:
        raise InputError("Give at least one seed, and none below 0.")
    out = Path(out).absolute()
    if out.exists() and not is_encoder(out) and (out.is_file() or any(out.iterdir())):
        raise InputError(f"{out} is not empty and not an encoder; choose another folder.")
    work = out.with_name(f"{out.name}.unfinished")
    started = time.perf_counter()
    training = FreezeTraining(plan.freeze, data, backbone, progress)
    reading = time.perf_counter() - started
    done: list[dict[str, Any]] = []
    best: SeedResult | None = None
    for seed in seeds:  # only the best is held: networks and tables of many seeds would fill a GPU
        result = training.run(seed, work=work, watch=watch)
        done.append(result.to_json())
        if best is None or dev_mean(result, plan.freeze.choose_by) > dev_mean(best, plan.freeze.choose_by):
            best = result
    assert best is not None
    results = summary(plan, done, backbone, command) | {
        "best_seed": best.seed,
        "seconds": round(sum(seed["seconds"] for seed in done), 2),
        "seconds_reading": round(reading, 2),
        "data": data.facts(),
        "notes": [*data.notes, *_kept_starts(done)],
    }
    encoder = as_encoder(best, backbone, plan.freeze)
    record = record_run(training, best) | {"recipe": "freeze", "name": plan.name}
    extras = {
        RESULTS_FILE: _json(results),
        RUN_FILE: _json(record),
        SEEN_FILE: _array(data.seen()),
        "README.md": write_card(encoder, plan, results, record).encode(),
    }
    encoder.save(out, extras=extras)
    shutil.rmtree(work, ignore_errors=True)
    return Outcome(encoder, results, record)


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


def dev_mean(result: SeedResult, metric: str) -> float:
    """The score a seed is chosen by."""
    return float(np.mean([scores[metric] for scores in result.dev.values()]))


def _kept_starts(seeds: list[dict[str, Any]]) -> list[str]:
    """Seeds whose training made nothing better: their encoders are what they were before it."""
    return [
        f"seed {seed['seed']}: no epoch of {stage} was better on dev than the start, which was kept"
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
