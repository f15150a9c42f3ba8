"""The plans in experiments/ are those that the files in results/ were made with."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from decoder2vec.config import to_table, with_settings
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import Stage, load_plan, read_variants
from decoder2vec.training.recipes.freeze import FreezeRecipe

ROOT = Path(__file__).parents[1]
STUDIES = ("freeze", "spt", "llm2vec", "masking")
RESULTS = [file for study in STUDIES for file in sorted((ROOT / "results" / study).glob("*.json"))]


@cache
def plan_files(study):
    """The file and variant of every plan of a study by name."""
    plans = {}
    for file in sorted((ROOT / "experiments" / study).glob("*.toml")):
        variants = read_variants(file)
        assert not plans.keys() & variants.keys(), "names of plans are unique within a study"
        plans |= {name: (file, name if len(variants) > 1 else None) for name in variants}
    return plans


def changed_settings(document):
    """Settings that the recorded run took from a grid, a search or the command line instead of the plan."""
    names = {name for tried in document.get("grid", []) for name in tried["settings"]}
    names |= set(document["config"].get("search", {}))
    words = shlex.split(document["command"])
    names |= {value.partition("=")[0] for option, value in pairwise(words) if option == "--set"}
    if "stage" in document:  # of a plan with stages the results are those of the last one
        stage = document["stage"]["name"] + "."
        names = {name.removeprefix(stage) for name in names if name.startswith(stage)}
    return names


def effective(recipe):
    """The recipe without settings that have no effect: early results were recorded with other values of these."""
    if recipe.training.steps:
        recipe = replace(recipe, training=replace(recipe.training, epochs=0))
    if isinstance(recipe, FreezeRecipe) and recipe.pretrain == "none":
        recipe = replace(recipe, pretraining=Schedule())
    if isinstance(recipe, FreezeRecipe) and recipe.loss == "none":
        recipe = replace(recipe, training=Schedule())
    return recipe


def value_at(table, path):
    for key in path.split("."):
        table = table[key]
    return table


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_plans_equal_those_recorded(file):
    document = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or "config" not in document:
        pytest.skip("no result of a training")
    name = re.sub(r"-seed\d+$", "", file.stem)
    plan_file, variant = plan_files(file.parent.name)[name]
    planned: Stage = load_plan(plan_file, variant=variant).stages[-1]
    recorded = Stage.from_json(document["config"])
    table = to_table(recorded.recipe)
    changes = {path: value_at(table, path) for path in changed_settings(document)}
    assert effective(with_settings(planned.recipe, changes)) == effective(recorded.recipe)
    assert planned.data == recorded.data


OPEN = {"attention", "read.template", "read.layer", "read.pooling", "read.normed", "training.epochs"}


@pytest.mark.parametrize("study", ["spt", "llm2vec", "masking", "l3prune"])
def test_plans_of_studies_leave_no_reading_open(study):
    """Defaults may change with the model and the data; what a study did may not."""
    for file, variant in plan_files(study).values():
        for stage in load_plan(file, variant=variant).stages:
            unset = stage.unset - ({"training.epochs"} if stage.recipe.training.steps else set())
            assert not unset & OPEN, variant
