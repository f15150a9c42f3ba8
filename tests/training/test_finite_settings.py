"""No setting of a recipe, an objective or a teacher may be NaN or infinite: it is refused before any work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from decoder2vec.config import from_table, to_table, with_settings
from decoder2vec.errors import InputError
from decoder2vec.serving.vector_cache import VectorCache
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import load_plan
from decoder2vec.training.teachers import Teacher
from toys.contract import TOY_OBJECTIVES, TOY_RECIPES

SETTINGS = [toy.recipe for toy in TOY_RECIPES.values()] + [toy.config for toy in TOY_OBJECTIVES.values()]
SETTINGS.append(Teacher("tiny-llama"))


def floats(settings: Any, path: str = "") -> Iterator[tuple[Any, str, str]]:
    """Every setting that is a float: its dataclass, its name and its path."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float):
            yield settings, field.name, f"{path}{field.name}"
        elif is_dataclass(value):
            yield from floats(value, f"{path}{field.name}.")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400], ids=["nan", "inf", "-inf", "400 digits"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: type(settings).__name__)
def test_value_that_is_not_finite_is_refused(settings, value):
    for owner, name, path in floats(settings):
        with pytest.raises(InputError, match=name):
            with_settings(settings, {path: value})
        if not isinstance(value, int):
            with pytest.raises(InputError):
                replace(owner, **{name: value})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0", "0.0"])
def test_learning_rate_is_above_0(value):
    with pytest.raises(InputError, match=r"rate.* must be a (finite )?number"):
        load_plan("lora", [f"training.rate={value}"])
    with pytest.raises(InputError, match="rate"):
        Schedule(rate=float(value))


def test_fraction_or_width_is_finite():
    recipe = TOY_RECIPES["freeze"].recipe
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match="hidden must be a finite number"):
            from_table(type(recipe), {**to_table(recipe), "hidden": value})


@pytest.mark.parametrize("megabytes", [math.nan, math.inf, -1])
def test_cache_has_a_size(megabytes):
    with pytest.raises(InputError, match="0 or more"):
        VectorCache(megabytes)
