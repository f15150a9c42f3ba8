"""Recipes by the name of their table in a plan; other packages add theirs by the entry point `decoder2vec.recipes`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.recipes.full import FullTuning
from decoder2vec.recipes.kv_prefix import PrefixTuning
from decoder2vec.recipes.lora import LoraTuning
from decoder2vec.recipes.soft_prompt import SoftPromptTuning

_OWN: dict[str, type[Any]] = {
    "freeze": Freeze,
    "soft_prompt": SoftPromptTuning,
    "kv_prefix": PrefixTuning,
    "lora": LoraTuning,
    "full": FullTuning,
}


@cache
def recipes() -> dict[str, type[Any]]:
    """All recipes; a name that is taken is refused."""
    found = dict(_OWN)
    for point in entry_points(group="decoder2vec.recipes"):
        if point.name in found:
            raise InputError(f"The recipe {point.name!r} of {point.value} has a name that is taken.")
        found[point.name] = point.load()
    return found


def recipe_named(name: str) -> type[Any]:
    """The settings of a recipe."""
    if name not in recipes():
        raise unknown_name("recipe", name, recipes())
    return recipes()[name]
