"""A training plan: one TOML file that names the recipe, its settings and its data."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.recipes.freeze import EMBEDDING, Freeze
from decoder2vec.tables import from_table, override, to_table
from decoder2vec.training.data import DataFiles

RECIPES = {"freeze": Freeze}
"""Recipes by the name of their table in the file."""


@dataclass(frozen=True)
class Plan:
    """What to train, on which files."""

    name: str = "freeze"
    about: str = ""
    """One sentence: what this file is for."""
    freeze: Freeze = field(default_factory=Freeze)
    data: DataFiles = field(default_factory=DataFiles)
    search: dict[str, Any] = field(default_factory=dict)
    """Ranges for `--search`: setting = [low, high] or a list of choices."""

    def wants(self) -> list[str]:
        """Which kinds of data the recipe reads."""
        kinds = {"autoencoder": "texts", "contrastive": "triplets", "snli": "nli"}
        found = [] if self.freeze.loss == "none" else ["pairs"]
        if self.freeze.pretrain in kinds:
            found.append(kinds[self.freeze.pretrain])
        return found

    def to_json(self) -> dict[str, Any]:
        """The whole plan, defaults included."""
        table = {"name": self.name, "about": self.about, "freeze": to_table(self.freeze), "data": to_table(self.data)}
        return {**table, "search": self.search} if self.search else table


def read_plan(file: Path | None, settings: Sequence[str] = (), data: dict[str, Any] | None = None) -> Plan:
    """The plan of a file with `key=value` settings put over it; without a file, a good start for any pairs.

    A setting without a dot belongs to the recipe: `loss=mse`; with dots it names a table: `freeze.training.epochs=3`.
    """
    table: dict[str, Any] = {"freeze": to_table(EMBEDDING), "name": "embedding"}
    if file is not None:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"Cannot read the plan {file}: {error}") from None
    recipe = table.pop("recipe", "freeze")
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    named = [one if one.partition("=")[0].split(".")[0] in (recipe, "data") else f"{recipe}.{one}" for one in settings]
    override(table, named)
    if not isinstance(table.setdefault("data", {}), dict):
        raise InputError(f"data must be a table, not {table['data']!r}.")
    table["data"].update(data or {})
    if file is not None:
        table.setdefault("name", file.stem)
    search = table.pop("search", {})
    if not isinstance(search, dict):
        raise InputError(f"search must be a table, not {search!r}.")
    plan = from_table(Plan, table)
    return Plan(plan.name, plan.about, plan.freeze, plan.data, search)
