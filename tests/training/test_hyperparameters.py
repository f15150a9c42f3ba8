"""Hyperparameters chosen on dev, from a grid or by Optuna trials, without evaluating a test file."""

from __future__ import annotations

import builtins
from dataclasses import replace

import pytest

from decoder2vec.config import with_settings
from decoder2vec.errors import InputError, MissingExtraError
from decoder2vec.training.hyperparameters import choose_by_trials, choose_from_grid, parse_grid, suggest
from decoder2vec.training.objectives.labels import LabelsConfig
from decoder2vec.training.plan import Stage, load_plan
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.recipe import Trainer
from decoder2vec.training.results import SeedResult
from toys.contract import labelled_data
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data, toy_pairs

SETTINGS = ["widths=[8]", "hidden=8", "pretrain=none", "head=sum", "training.epochs=1", "training.batch=16"]
SEARCH = {"hidden": [4, 16], "dropout": [0.0, 0.4], "training.rate": [1e-4, 1e-1], "head": ["sum", "gated", "mlp"]}


@pytest.fixture
def stage():
    """A small FREEZE stage with a search table."""
    return replace(load_plan(None, SETTINGS).stages[0], search=SEARCH)


@pytest.fixture
def runs(monkeypatch):
    """(recipe, result) of every seed that is trained in a test."""
    runs, original = [], Trainer.run

    def run(self, seed, **options):
        result = original(self, seed, **options)
        runs.append((self.recipe, result))
        return result

    monkeypatch.setattr(Trainer, "run", run)
    return runs


def adapter_stage(name, search=None, **changes):
    """A stage that trains an adapter in two steps."""
    return Stage("toy", small_recipe(name, epochs=1, batch=16, **changes), search=search or {})


# --- grid -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("training.rate=0.02,1e-3", "training.rate", [0.02, 0.001]),
        ("tokens=1,2", "tokens", [1, 2]),
        ("read.template=plain, prompteol", "read.template", ["plain", "prompteol"]),
    ],
)
def test_a_grid_option_is_a_setting_and_its_values(option, name, values):
    assert parse_grid([option]) == {name: values}


def test_several_grid_options_make_one_grid():
    assert parse_grid(["tokens=1,2", "training.rate=0.1"]) == {"tokens": [1, 2], "training.rate": [0.1]}


@pytest.mark.parametrize("option", ["training.rate", "training.rate="])
def test_a_grid_option_without_values_raises(option):
    with pytest.raises(InputError, match="setting=value"):
        parse_grid([option])


def test_the_best_combination_of_the_grid_is_chosen_on_dev(backbone, monkeypatch):
    scores = iter([3.0, 9.0, 5.0, 1.0])
    monkeypatch.setattr(SeedResult, "selection_score", lambda *_: next(scores))
    grid = {"tokens": [1, 2], "training.rate": [0.1, 0.01]}
    stage = adapter_stage("soft_prompt")
    chosen, tried = choose_from_grid(stage, grid, toy_data(), backbone("tiny-llama"))
    assert [trial["settings"] for trial in tried] == [
        {"tokens": 1, "training.rate": 0.1},
        {"tokens": 1, "training.rate": 0.01},
        {"tokens": 2, "training.rate": 0.1},
        {"tokens": 2, "training.rate": 0.01},
    ]
    assert [trial["dev"] for trial in tried] == [3.0, 9.0, 5.0, 1.0]
    assert (chosen.recipe.tokens, chosen.recipe.training.rate) == (1, 0.01)
    assert replace(chosen, recipe=stage.recipe) == stage


def test_the_grid_evaluates_no_test_file(backbone, runs):
    data = toy_data(test=(toy_pairs("test"),))
    choose_from_grid(adapter_stage("soft_prompt"), {"tokens": [1]}, data, backbone("tiny-llama"))
    assert [result.test for _, result in runs] == [{}]


def test_the_grid_evaluates_no_labelled_test_file(backbone, runs):
    data = labelled_data(labelled_test=labelled_data().labelled_dev)
    stage = Stage("toy", small_recipe("rerank", epochs=1, batch=16, objective=LabelsConfig()), search={})
    choose_from_grid(stage, {"rank": [2]}, data, backbone("tiny-llama"))
    assert [list(result.notes["labels"]) for _, result in runs] == [["dev"]]


def test_a_combination_that_fails_is_skipped_and_reported(backbone):
    messages = []
    stage = adapter_stage("soft_prompt")
    chosen, tried = choose_from_grid(
        stage, {"tokens": [5000, 2]}, toy_data(), backbone("tiny-llama"), notify=messages.append
    )
    assert chosen.recipe.tokens == 2 and tried[0]["dev"] is None and "skipped" in messages[0]
    with pytest.raises(InputError, match="No combination"):
        choose_from_grid(stage, {"tokens": [5000]}, toy_data(), backbone("tiny-llama"))


def test_an_unknown_setting_in_the_grid_raises(backbone):
    with pytest.raises(InputError, match="rnak"):
        choose_from_grid(adapter_stage("lora"), {"rnak": [1]}, toy_data(), backbone("tiny-llama"))


# --- Optuna ---------------------------------------------------------------------------------------------------------


class RecordingTrial:
    """Records what it is asked to suggest, and suggests the last value."""

    def suggest_int(self, name, low, high, log):
        self.request = ("int", name, low, high, log)
        return high

    def suggest_float(self, name, low, high, log):
        self.request = ("float", name, low, high, log)
        return high

    def suggest_categorical(self, name, choices):
        self.request = ("choice", name, list(choices))
        return len(choices) - 1


@pytest.mark.parametrize(
    ("choices", "request_", "value"),
    [
        ([4, 16], ("int", "x", 4, 16, False), 16),
        ([4, 400], ("int", "x", 4, 400, True), 400),
        ([0, 400], ("int", "x", 0, 400, False), 400),
        ([0.0, 0.4], ("float", "x", 0.0, 0.4, False), 0.4),
        ([1e-4, 1e-2], ("float", "x", 1e-4, 1e-2, True), 1e-2),
        ([0, 0.5], ("float", "x", 0, 0.5, False), 0.5),
        ([32, 64, 128], ("choice", "x", [0, 1, 2]), 128),
        (["sum", "mlp"], ("choice", "x", [0, 1]), "mlp"),
        ([False, True], ("choice", "x", [0, 1]), True),
        ([[8], [8, 16]], ("choice", "x", [0, 1]), [8, 16]),
        ([7], ("choice", "x", [0]), 7),
    ],
)
def test_two_numbers_are_a_range_and_other_lists_choices(choices, request_, value):
    trial = RecordingTrial()
    assert suggest(trial, "x", choices) == value
    assert trial.request == request_


def test_with_settings_changes_nested_settings_only():
    changed = with_settings(FreezeRecipe(), {"hidden": 9, "training.rate": 0.5})
    assert (changed.hidden, changed.training.rate) == (9, 0.5)
    assert replace(changed, hidden=0.5, training=FreezeRecipe().training) == FreezeRecipe()


def test_the_best_trial_on_dev_is_returned(stage, data, backbone, runs):
    messages = []
    chosen = choose_by_trials(stage, data, backbone("tiny-llama"), 5, notify=messages.append)
    assert runs[0][0] == stage.recipe, "the plan's own settings are the first trial"
    assert len(runs) == len(messages) == 5
    assert chosen.recipe == max(runs, key=lambda run: run[1].dev["dev"]["pearson"])[0]
    assert messages[0].startswith("trial 0: dev ") and messages[0].endswith("the plan itself")
    assert all(result.test == {} for _, result in runs), "no trial evaluates a test file"
    assert (chosen.name, chosen.data) == (stage.name, stage.data)
    assert all(4 <= recipe.hidden <= 16 and 0 <= recipe.dropout <= 0.4 for recipe, _ in runs)


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_trials_choose_settings_of_adapter_recipes(name, backbone, runs):
    stage = adapter_stage(name, {"training.rate": [1e-3, 1e-1]})
    chosen = choose_by_trials(stage, toy_data(), backbone("tiny-llama"), 2)
    assert [recipe.name for recipe, _ in runs] == [name] * 2
    rates = [recipe.training.rate for recipe, _ in runs]
    assert rates[0] == stage.recipe.training.rate != rates[1] and 1e-3 <= rates[1] <= 1e-1
    assert chosen.recipe == max(runs, key=lambda run: run[1].selection_score("spearman"))[0]


@pytest.mark.parametrize(
    "search", [{"changes": [["case"], ["words"]]}, {"latents": [[{"layers": [1]}], [{"layers": [2, 3]}]]}], ids=str
)
def test_trials_may_change_what_is_read(search, stage, data, backbone, runs):
    """Every trial reads its own texts and layers."""
    chosen = choose_by_trials(replace(stage, search=search), data, backbone("tiny-llama"), 3)
    assert len(runs) == 3 and chosen.recipe in [recipe for recipe, _ in runs]
    name = next(iter(search))
    assert getattr(runs[0][0], name) == getattr(stage.recipe, name)
    assert all(getattr(recipe, name) != getattr(stage.recipe, name) for recipe, _ in runs[1:])


def test_a_study_gives_the_same_result_again(stage, data, backbone):
    model = backbone("tiny-llama")
    assert choose_by_trials(stage, data, model, 3) == choose_by_trials(stage, data, model, 3)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({}, r"no \[search\] table"),
        ({"hidden": 3}, r"\[search\] hidden must be a list"),
        ({"hidden": []}, r"\[search\] hidden must be a list"),
        ({"hidden": [16, 4]}, r"\[search\] hidden must be a list: \[low, high\]"),
        ({"hiden": [4, 16]}, r"Unknown setting 'hiden'\. Did you mean hidden"),
        ({"training.speed": [4, 16]}, r"Unknown setting in \[training\] 'speed'"),
        ({"trianing.rate": [4, 16]}, r"trianing\.rate names no setting"),
        ({"training.rate.x": [4, 16]}, r"training\.rate\.x names no setting"),
        ({"head": ["sum", "som"]}, r"Unknown head 'som'"),
    ],
)
def test_a_search_table_with_a_mistake_raises(search, message, stage, data, backbone, caplog):
    with pytest.raises(InputError, match=message):
        choose_by_trials(replace(stage, search=search), data, backbone("tiny-llama"), 6)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("trials", [0, -1])
def test_fewer_than_one_trial_raises(trials, stage, data, backbone):
    with pytest.raises(InputError, match="needs 1 trial or more"):
        choose_by_trials(stage, data, backbone("tiny-llama"), trials)


def test_without_optuna_the_error_names_the_extra(stage, data, backbone, monkeypatch):
    original = builtins.__import__

    def without_optuna(name, *args, **kwargs):
        if name == "optuna":
            raise ImportError
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_optuna)
    with pytest.raises(MissingExtraError, match=r"optuna: pip install 'decoder2vec\[optuna\]'"):
        choose_by_trials(stage, data, backbone("tiny-llama"), 2)
