"""Settings chosen from a grid on dev."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError
from decoder2vec.training.hyperparameters import choose_from_grid, parse_grid
from decoder2vec.training.plan import Plan
from decoder2vec.training.results import Result
from toys.training import small_recipe, toy_data


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("training.rate=0.02,1e-3", ("training.rate", [0.02, 0.001])),
        ("tokens=1,2", ("tokens", [1, 2])),
        ("read.template=plain, prompteol", ("read.template", ["plain", "prompteol"])),
    ],
)
def test_a_grid_is_read_by_setting_and_values(given, expected):
    assert parse_grid([given]) == [expected]


@pytest.mark.parametrize("wrong", ["training.rate", "training.rate="])
def test_a_grid_without_values_is_refused(wrong):
    with pytest.raises(InputError, match="setting=value"):
        parse_grid([wrong])


def test_every_combination_is_tried_and_dev_chooses(backbone, monkeypatch):
    scores = iter([3.0, 9.0, 5.0, 1.0])
    monkeypatch.setattr(Result, "dev_mean", lambda *_: next(scores))
    data = toy_data()
    plan = Plan("toy", recipe=small_recipe("soft_prompt", epochs=1, batch=16))
    grid = [("tokens", [1, 2]), ("training.rate", [0.1, 0.01])]
    chosen, tried = choose_from_grid(plan, grid, data, backbone("tiny-llama"))
    assert [one["settings"] for one in tried] == [
        {"tokens": 1, "training.rate": 0.1},
        {"tokens": 1, "training.rate": 0.01},
        {"tokens": 2, "training.rate": 0.1},
        {"tokens": 2, "training.rate": 0.01},
    ]
    assert [one["dev"] for one in tried] == [3.0, 9.0, 5.0, 1.0]
    assert (chosen.recipe.tokens, chosen.recipe.training.rate) == (1, 0.01)


def test_a_combination_that_fails_is_left_out_and_told(backbone):
    said = []
    plan = Plan("toy", recipe=small_recipe("soft_prompt", epochs=1, batch=16))
    chosen, tried = choose_from_grid(
        plan, [("tokens", [5000, 2])], toy_data(), backbone("tiny-llama"), notify=said.append
    )
    assert chosen.recipe.tokens == 2 and tried[0]["dev"] is None and "left out" in said[0]
    with pytest.raises(InputError, match="No combination"):
        choose_from_grid(plan, [("tokens", [5000])], toy_data(), backbone("tiny-llama"))


def test_a_setting_that_does_not_exist_is_named(backbone):
    plan = Plan("toy", recipe=small_recipe("lora", epochs=1, batch=16))
    with pytest.raises(InputError, match="rnak"):
        choose_from_grid(plan, [("rnak", [1])], toy_data(), backbone("tiny-llama"))
