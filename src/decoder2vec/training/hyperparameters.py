"""Hyperparameters chosen on dev: a grid of settings, or trials by Optuna. No test file is ever evaluated here."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import Notify
from decoder2vec.config import with_settings
from decoder2vec.errors import DivergedError, InputError, MissingExtraError, UnknownNameError
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import Stage
from decoder2vec.training.recipes.recipe import Recipe, Trainer

Grid = Mapping[str, Sequence[Any]]
"""Values to try by the name of a setting."""
Tried = list[dict[str, Any]]
"""Settings and dev score of each combination, in the order in which they were tried; None if training diverged."""


def parse_grid(options: Sequence[str]) -> dict[str, list[Any]]:
    """`["training.rate=0.02,0.01"]` to values by setting."""
    grid = {}
    for option in options:
        name, equals, values = option.partition("=")
        try:
            parsed = tomllib.loads(f"values = [{values}]")["values"]
        except tomllib.TOMLDecodeError:
            parsed = [value.strip() for value in values.split(",")]
        if not equals or not parsed:
            raise InputError(f"{option!r} is not of the form setting=value,value.")
        grid[name.strip()] = parsed
    return grid


def choose_from_grid(
    stage: Stage,
    grid: Grid,
    data: TrainingData,
    backbone: Backbone,
    *,
    seed: int = 0,
    notify: Notify = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> tuple[Stage, Tried]:
    """Train every combination with one seed; returns the stage with the settings best on dev, and what was tried."""
    without_test = data.without_test()
    tried: Tried = []
    best: tuple[float, Stage] | None = None
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        candidate = replace(stage, recipe=with_settings(stage.recipe, settings))
        try:
            score = _dev_score(candidate.recipe, without_test, backbone, seed, on_progress)
        except (DivergedError, InputError) as error:
            notify(f"{settings}: skipped, {error}")
            tried.append({"settings": settings, "dev": None})
            continue
        notify(f"{settings}: dev {score:.2f}")
        tried.append({"settings": settings, "dev": round(score, 3)})
        if best is None or score > best[0]:
            best = score, candidate
    if best is None:
        raise InputError("No combination of the grid could be trained; see the reasons above.")
    return best[1], tried


def choose_by_trials(
    stage: Stage,
    data: TrainingData,
    backbone: Backbone,
    trials: int,
    *,
    notify: Notify = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> Stage:
    """The stage with the best settings of an Optuna study over its `search` table; its own are the first trial."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna") from None
    if not stage.search:
        raise InputError("The plan has no [search] table; write settings with [low, high] or a list of choices.")
    if trials < 1:
        raise InputError(f"A search needs 1 trial or more, not {trials}.")
    for name, choices in stage.search.items():
        _check_search(stage.recipe, name, choices)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a failed trial is raised anyway
    without_test = data.without_test()
    trained: dict[int, Recipe[Any, Any]] = {}

    def objective(trial: Any) -> float:
        settings: dict[str, Any] = {}
        if trial.number:
            settings = {name: suggest(trial, name, choices) for name, choices in stage.search.items()}
        try:
            recipe = with_settings(stage.recipe, settings)
            score = _dev_score(recipe, without_test, backbone, 0, on_progress)
        except (DivergedError, InputError) as error:
            if not trial.number or isinstance(error, UnknownNameError):
                raise
            notify(f"trial {trial.number}: skipped, {error}  {settings}")
            raise optuna.TrialPruned from error
        trained[trial.number] = recipe
        notify(f"trial {trial.number}: dev {score:.2f}  {settings or 'the plan itself'}")
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return replace(stage, recipe=trained[study.best_trial.number])


def suggest(trial: Any, name: str, choices: list[Any]) -> Any:
    """A value within [low, high] (on a log scale if they are far apart), or one of several choices."""
    if not _is_range(choices):
        return choices[trial.suggest_categorical(name, range(len(choices)))]
    low, high = choices
    wide = low > 0 and high / low > 10
    if all(isinstance(value, int) for value in choices):
        return trial.suggest_int(name, low, high, log=wide)
    return trial.suggest_float(name, low, high, log=wide)


def _dev_score(
    recipe: Recipe[Any, Any], data: TrainingData, backbone: Backbone, seed: int, on_progress: OnProgress
) -> float:
    return Trainer(recipe, data, backbone).run(seed, on_progress=on_progress).selection_score(recipe.choose_by)


def _check_search(recipe: Recipe[Any, Any], name: str, choices: Any) -> None:
    if not isinstance(choices, list) or not choices or (_is_range(choices) and choices[0] > choices[1]):
        raise InputError(f"[search] {name} must be a list: [low, high] or several choices.")
    with_settings(recipe, {name: choices[0]})


def _is_range(choices: list[Any]) -> bool:
    return len(choices) == 2 and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in choices
    )
