"""What is trained of a model, one recipe per file, and their registry by the name in a plan.

Other packages add recipes by the entry point `decoder2vec.recipes`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.training.recipes.bottleneck import BottleneckRecipe, ConvolutionRecipe
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.full import FullRecipe
from decoder2vec.training.recipes.kv_prefix import KeyValuePrefixRecipe
from decoder2vec.training.recipes.lora import LoraRecipe
from decoder2vec.training.recipes.recipe import Recipe
from decoder2vec.training.recipes.rerank import RerankRecipe
from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe

_BUILT_IN: tuple[type[Recipe[Any, Any]], ...] = (
    FreezeRecipe,
    SoftPromptRecipe,
    KeyValuePrefixRecipe,
    LoraRecipe,
    BottleneckRecipe,
    ConvolutionRecipe,
    FullRecipe,
    RerankRecipe,
)


@cache
def recipes() -> dict[str, type[Recipe[Any, Any]]]:
    """All recipes by name."""
    by_name: dict[str, type[Recipe[Any, Any]]] = {recipe.name: recipe for recipe in _BUILT_IN}
    for point in entry_points(group="decoder2vec.recipes"):
        if point.name in by_name:
            raise InputError(f"The recipe {point.name!r} of {point.value} has a name that is taken.")
        by_name[point.name] = point.load()
    return by_name


def recipe_class(name: str) -> type[Recipe[Any, Any]]:
    """The recipe of that name."""
    if name not in recipes():
        raise unknown_name("recipe", name, recipes())
    return recipes()[name]
