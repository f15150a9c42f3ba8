"""Settings chosen by Optuna: each trial is one short training, judged on dev. Needs the extra "optuna"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import with_settings
from decoder2vec.errors import DivergedError, InputError, MissingExtraError, UnknownNameError
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.training.data import TrainingData
from decoder2vec.training.frozen.training import FreezeTraining
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import Plan


def search_plan(
    plan: Plan,
    data: TrainingData,
    backbone: Backbone,
    trials: int,
    *,
    notify: Callable[[str], object] = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> Plan:
    """The plan with the settings that did best on dev; the plan's own settings are the first trial."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna") from None
    if not plan.search:
        raise InputError("The plan has no [search] table; write settings with [low, high] or a list of choices.")
    if trials < 1:
        raise InputError(f"A search needs 1 trial or more, not {trials}.")
    if not isinstance(plan.recipe, Freeze):
        raise InputError("Only FREEZE is searched by trials; for other recipes try several settings with --grid.")
    own = plan.recipe
    for name, span in plan.search.items():
        _check(own, name, span)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a failed trial is raised anyhow; its traceback is no news
    training = FreezeTraining(own, replace(data, test=()), backbone)  # no trial ever sees a test file
    tried: dict[int, Freeze] = {}

    def objective(trial: Any) -> float:
        chosen = {name: suggest(trial, name, span) for name, span in plan.search.items()} if trial.number else {}
        try:
            recipe = with_settings(own, chosen)
            training.recipe = recipe
            score = training.run(0, on_progress=on_progress).dev_mean(recipe.choose_by)
        except (DivergedError, InputError) as error:
            if not trial.number or isinstance(error, UnknownNameError):
                raise
            notify(f"trial {trial.number}: left out, {error}  {chosen}")
            raise optuna.TrialPruned from error
        tried[trial.number] = recipe
        notify(f"trial {trial.number}: dev {score:.2f}  {chosen or 'the plan as it is'}")
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return replace(plan, recipe=tried[study.best_trial.number])


def suggest(trial: Any, name: str, span: Any) -> Any:
    """A value within [low, high] (numbers, on a log scale if they are far apart), or one of several choices."""
    if not _is_range(span):
        return span[trial.suggest_categorical(name, range(len(span)))]
    low, high = span
    wide = low > 0 and high / low > 10
    if all(isinstance(value, int) for value in span):
        return trial.suggest_int(name, low, high, log=wide)
    return trial.suggest_float(name, low, high, log=wide)


def _check(recipe: Freeze, name: str, span: Any) -> None:
    if not isinstance(span, list) or not span or (_is_range(span) and span[0] > span[1]):
        raise InputError(f"[search] {name} must be a list: [low, high] or several choices.")
    if name.split(".")[0] in ("latents", "changes"):
        raise InputError(
            f"[search] {name} cannot be searched: latents and pairs are read once, before the first trial."
        )
    with_settings(recipe, {name: span[0]})


def _is_range(span: list[Any]) -> bool:
    return len(span) == 2 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in span)
