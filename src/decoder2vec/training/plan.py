"""A training plan: one TOML file that names the recipe, its settings and its data."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder2vec.config import from_table, override, to_table
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.recipes.freeze import EMBEDDING, Freeze
from decoder2vec.recipes.objective import FROM_TEXTS
from decoder2vec.recipes.registry import recipe_named, recipes
from decoder2vec.training.data import DataFiles, TrainingData

Recipe = Freeze | Adapting

_ONE_SIDED = (
    "mntp under causal attention tells hidden tokens from what stands before them only; "
    "attention=bidirectional shows it both sides"
)

_OFTEN = 20
"""Who reads plain texts more often than that has settings for a larger file."""


@dataclass(frozen=True)
class Plan:
    """What to train, on which files."""

    name: str = "freeze"
    about: str = ""
    """One sentence: what this file is for."""
    recipe: Recipe = field(default_factory=Freeze)
    data: DataFiles = field(default_factory=DataFiles)
    search: dict[str, Any] = field(default_factory=dict)
    """Ranges for `--search`: setting = [low, high] or a list of choices."""

    @property
    def recipe_name(self) -> str:
        """The name of the recipe's table in the file."""
        return next(name for name, kind in recipes().items() if type(self.recipe) is kind)

    def wants(self) -> list[str]:
        """Which kinds of data the recipe reads."""
        if isinstance(self.recipe, Adapting):
            name = self.recipe.objective.name
            return ["contrast"] if name == "info_nce" else ["corpus"] if name in FROM_TEXTS else ["pairs"]
        kinds = {"autoencoder": "texts", "contrastive": "triplets", "snli": "nli"}
        found = [] if self.recipe.loss == "none" else ["pairs"]
        if self.recipe.pretrain in kinds:
            found.append(kinds[self.recipe.pretrain])
        return found

    def notes(self, data: TrainingData) -> list[str]:
        """What a user should know about the settings: they are allowed, but seldom meant."""
        recipe, found = self.recipe, []
        if not isinstance(recipe, Adapting) or recipe.objective.name not in FROM_TEXTS:
            return []
        if recipe.objective.name == "mntp" and recipe.attention == "causal":
            found.append(_ONE_SIDED)
        steps, batch, texts = recipe.training.steps, recipe.training.batch, len(data.texts)
        packed = recipe.objective.name.startswith("punctuation")  # into excerpts, whose number is not known here
        if steps * batch > _OFTEN * texts > 0 and not packed:
            found.append(
                f"{steps} steps of {batch} read each of {texts:,} texts {steps * batch / texts:.0f} times; "
                f"training.steps={math.ceil(_OFTEN * texts / batch)} would read it {_OFTEN} times"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The whole plan, defaults included."""
        table: dict[str, Any] = {"name": self.name, "about": self.about, "recipe": self.recipe_name}
        table |= {self.recipe_name: to_table(self.recipe), "data": to_table(self.data)}
        return {**table, "search": self.search} if self.search else table


def read_plan(
    file: Path | None, settings: Sequence[str] = (), data: dict[str, Any] | None = None, recipe: str | None = None
) -> Plan:
    """The plan of a file with `key=value` settings put over it; without a file, a good start for any pairs.

    A setting without a dot belongs to the recipe: `loss=mse`; with dots it names a table: `freeze.training.epochs=3`.
    Without a file, `recipe` names one to take with its defaults.
    """
    table = read_table(file) if file else _start(recipe)
    return plan_of(table, file.stem if file else None, settings, data)


def plan_of(
    table: dict[str, Any], name: str | None = None, settings: Sequence[str] = (), data: dict[str, Any] | None = None
) -> Plan:
    """The plan that a table describes, which is called `name` unless the table says otherwise."""
    chosen = table.pop("recipe", "freeze")
    kind = recipe_named(chosen)
    named = [one if one.partition("=")[0].split(".")[0] in (chosen, "data") else f"{chosen}.{one}" for one in settings]
    override(table, named)
    for part in ("data", "search", chosen):
        if not isinstance(table.setdefault(part, {}), dict):
            raise InputError(f"{part} must be a table, not {table[part]!r}.")
    table["data"].update(data or {})
    known = {"name", "about", "data", "search", chosen}
    if unknown := table.keys() - known:
        raise unknown_name("setting", sorted(unknown)[0], known | {"recipe"})
    for key in ("name", "about"):
        if not isinstance(table.get(key, ""), str):
            raise InputError(f"{key} must be a text, not {table[key]!r}.")
    return Plan(
        table.get("name", name or chosen),
        table.get("about", ""),
        from_table(kind, table[chosen], chosen),
        from_table(DataFiles, table["data"], "data"),
        table["search"],
    )


def read_table(file: Path) -> dict[str, Any]:
    """What a TOML file says."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"Cannot read the plan {file}: {error}") from None


def _start(recipe: str | None) -> dict[str, Any]:
    if recipe in (None, "freeze"):
        return {"freeze": to_table(EMBEDDING), "name": "embedding"}
    return {"recipe": recipe, "name": recipe}
