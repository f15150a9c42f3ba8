"""Settings chosen from a grid: every combination is trained with one seed, and dev says which is kept."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import with_settings
from decoder2vec.errors import DivergedError, InputError
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import Plan
from decoder2vec.training.run import start_training

Tried = list[dict[str, Any]]
"""Settings and dev score of each combination, in the order in which they were tried."""


def parse_grid(choices: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """`training.rate=0.02,0.01` to the setting's name and its values."""
    found = []
    for choice in choices:
        name, equals, values = choice.partition("=")
        try:
            listed = tomllib.loads(f"values = [{values}]")["values"]
        except tomllib.TOMLDecodeError:
            listed = [value.strip() for value in values.split(",")]
        if not equals or not listed:
            raise InputError(f"{choice!r} is not of the form setting=value,value.")
        found.append((name.strip(), listed))
    return found


def choose_from_grid(
    plan: Plan,
    grid: Sequence[tuple[str, list[Any]]],
    data: TrainingData,
    backbone: Backbone,
    *,
    seed: int = 0,
    notify: Callable[[str], object] = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> tuple[Plan, Tried]:
    """The plan with the settings that did best on dev, and what was tried; no test file is looked at."""
    blind = replace(data, test=())
    tried: Tried = []
    best: tuple[float, Plan] | None = None
    for values in itertools.product(*(values for _, values in grid)):
        chosen = {name: value for (name, _), value in zip(grid, values, strict=True)}
        one = replace(plan, recipe=with_settings(plan.recipe, chosen))
        try:
            result = start_training(one.recipe, blind, backbone).run(seed, on_progress=on_progress)
        except (DivergedError, InputError) as error:
            notify(f"{chosen}: left out, {error}")
            tried.append({"settings": chosen, "dev": None})
            continue
        score = result.dev_mean(one.recipe.choose_by)
        notify(f"{chosen}: dev {score:.2f}")
        tried.append({"settings": chosen, "dev": round(score, 3)})
        if best is None or score > best[0]:
            best = score, one
    if best is None:
        raise InputError("No combination of the grid could be trained; see the reasons above.")
    return best[1], tried
