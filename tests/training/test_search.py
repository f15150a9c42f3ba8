"""Settings found by Optuna: the best on dev, without a look at test."""

from __future__ import annotations

import builtins
from dataclasses import replace

import pytest

from decoder2vec.errors import InputError, MissingExtraError
from decoder2vec.training.hyperparameters import choose_by_trials, suggest, with_settings
from decoder2vec.training.plan import read_plan
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.recipe import Trainer

SETTINGS = ["widths=[8]", "hidden=8", "pretrain=none", "head=sum", "training.epochs=1", "training.batch=16"]
SEARCH = {"hidden": [4, 16], "dropout": [0.0, 0.4], "training.rate": [1e-4, 1e-1], "head": ["sum", "gated", "mlp"]}


@pytest.fixture
def plan():
    return replace(read_plan(None, SETTINGS), search=SEARCH)


class Trial:
    """Says what it was asked for, and gives the top of every range."""

    def suggest_int(self, name, low, high, log):
        self.asked = ("int", name, low, high, log)
        return high

    def suggest_float(self, name, low, high, log):
        self.asked = ("float", name, low, high, log)
        return high

    def suggest_categorical(self, name, choices):
        self.asked = ("choice", name, list(choices))
        return len(choices) - 1


@pytest.mark.parametrize(
    ("span", "asked", "value"),
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
def test_two_numbers_are_a_range_and_all_else_are_choices(span, asked, value):
    trial = Trial()
    assert suggest(trial, "x", span) == value
    assert trial.asked == asked


def test_settings_of_parts_are_changed_and_all_else_stays():
    changed = with_settings(FreezeRecipe(), {"hidden": 9, "training.rate": 0.5})
    assert (changed.hidden, changed.training.rate) == (9, 0.5)
    assert replace(changed, hidden=0.5, training=FreezeRecipe().training) == FreezeRecipe()


def test_the_best_trial_on_dev_is_returned(plan, data, backbone, monkeypatch):
    tried, real = [], Trainer.run

    def run(self, seed, **kwargs):
        result = real(self, seed, **kwargs)
        tried.append((self.recipe, result.dev["dev"]["pearson"], result.test))
        return result

    monkeypatch.setattr(Trainer, "run", run)
    said = []
    found = choose_by_trials(plan, data, backbone("tiny-llama"), 5, notify=said.append)
    assert tried[0][0] == plan.recipe, "the plan's own settings are tried first"
    assert len(tried) == len(said) == 5
    assert found.recipe == max(tried, key=lambda one: one[1])[0]
    assert said[0].startswith("trial 0: dev ") and said[0].endswith("the plan as it is")
    assert all(test == {} for _, _, test in tried), "no trial sees a test file"
    assert (found.name, found.data) == (plan.name, plan.data)
    assert all(4 <= recipe.hidden <= 16 and 0 <= recipe.dropout <= 0.4 for recipe, _, _ in tried)


def test_a_search_finds_the_same_again(plan, data, backbone):
    model = backbone("tiny-llama")
    assert choose_by_trials(plan, data, model, 3) == choose_by_trials(plan, data, model, 3)


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
        ({"changes": [["case"], ["words"]]}, "changes cannot be searched"),
        ({"latents": [[{"layers": [1]}]]}, "latents cannot be searched"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(search, message, plan, data, backbone, caplog):
    with pytest.raises(InputError, match=message):
        choose_by_trials(replace(plan, search=search), data, backbone("tiny-llama"), 6)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("trials", [0, -1])
def test_a_search_needs_a_trial(trials, plan, data, backbone):
    with pytest.raises(InputError, match="needs 1 trial or more"):
        choose_by_trials(plan, data, backbone("tiny-llama"), trials)


def test_without_optuna_the_extra_is_named(plan, data, backbone, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "optuna":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"optuna: pip install 'decoder2vec\[optuna\]'"):
        choose_by_trials(plan, data, backbone("tiny-llama"), 2)
