"""Training plans: a TOML file names the recipe, its settings and its data, in one stage or several.

A plan file may extend another (`extends = "base.toml"`), and may describe many plans at once: each axis of its table
`[matrix]` has named values, each a table of overrides, and every combination is a variant named after its values.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from decoder2vec.config import from_table, override, to_table
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.training.data import DataFiles
from decoder2vec.training.recipes import recipe_class, recipes
from decoder2vec.training.recipes.freeze import EMBEDDING
from decoder2vec.training.recipes.recipe import Recipe

PLAN_RECIPES = ("bidirectional", "distill", "general", "unshuffle")
"""Recipes that are plans: TOML files beside the others."""
_PLAN_KEYS = {"name", "about", "data", "stages"}
_MAX_EXTENDS = 10

Table = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One training: a recipe with its settings, and the files it learns from."""

    name: str
    recipe: Recipe[Any, Any]
    data: DataFiles = field(default_factory=DataFiles)
    about: str = ""
    """One sentence: what this is for."""
    search: Table = field(default_factory=dict)
    """Ranges for hyperparameter search: setting = [low, high] or a list of choices."""
    optional: bool = False
    """Whether the stage is left out where the data have no file for it."""
    unset: frozenset[str] = field(default=frozenset(), compare=False)
    """Settings of the recipe, such as `read.template`, that neither a plan nor the user named: the recipe has their
    fixed defaults, and training may choose better ones for the model and the data."""
    settings_prefix: str = field(default="", compare=False)
    """What stands before its settings in `--set`: its name and a dot, where a plan has stages."""

    def to_json(self) -> Table:
        """The whole stage, defaults included, as a plan of one stage."""
        table: Table = {"name": self.name, "about": self.about, "recipe": self.recipe.name}
        table |= {self.recipe.name: to_table(self.recipe), "data": to_table(self.data)}
        table |= {"search": self.search} if self.search else {}
        return {**table, "optional": True} if self.optional else table

    @classmethod
    def from_json(cls, table: Table) -> Stage:
        """The inverse of `to_json`, also for results files of earlier versions."""
        return _parse_stage(table.get("name", ""), table, ())


@dataclass(frozen=True)
class Plan:
    """Stages that are trained one after the other, each on the model that the previous one made."""

    name: str
    stages: tuple[Stage, ...]
    about: str = ""

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise InputError("The plan has no stage to train.")
        if len(names) > 1 and (len(set(names)) < len(names) or not all(map(_is_stage_name, names))):
            raise InputError(f"Stages need different names of letters, digits, - and _, not {', '.join(names)}.")

    @classmethod
    def of(cls, recipe: Recipe[Any, Any], name: str | None = None, data: DataFiles | None = None) -> Plan:
        """A plan of one stage."""
        name = name or recipe.name
        return cls(name, (Stage(name, recipe, data or DataFiles()),))


def load_plan(
    source: Plan | Recipe[Any, Any] | str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    variant: str | None = None,
    stages: Sequence[str] = (),
) -> Plan:
    """A plan from a file, a recipe or the name of one.

    Args:
        source: A plan, a recipe, the name of a recipe, or a TOML file. By default FREEZE with settings that suit any
            scored pairs.
        settings: `key=value` over the plan. A key without a dot, or one that begins with none of the plan's tables,
            belongs to the recipe: `loss=mse`, `training.epochs=3`. In a plan with stages a key begins with the name of
            a stage: `mntp.training.steps=100`.
        variant: Which plan of a file with a `[matrix]`.
        stages: Train only these stages.

    """
    if isinstance(source, Recipe):
        source = Plan.of(source)
    if isinstance(source, Plan) and not (settings or stages or variant):
        return source
    tables = _read_source(source, variant)
    if stages and not tables.staged:
        raise InputError(f"--stages {','.join(stages)!r} chooses among the stages of a plan, and this one has none.")
    for stage in stages:
        if stage not in tables.stages:
            raise unknown_name("stage", stage, tables.stages)
    if tables.staged:
        _check_settings(settings, tables.stages)
    parsed = [
        _parse_stage(name, table, _settings_of(settings, name) if tables.staged else settings)
        for name, table in tables.stages.items()
    ]
    if tables.staged:  # stages build on each other: each is trained as it is written, whatever it is selected by
        parsed = [
            replace(stage, unset=stage.unset & {"choose_by"}, settings_prefix=f"{stage.name}.") for stage in parsed
        ]
    if stages:  # a stage that is named is wanted
        parsed = [replace(stage, optional=False) for stage in parsed if stage.name in stages]
    return Plan(tables.name, tuple(parsed), tables.about)


def read_variants(file: Path) -> dict[str, Table]:
    """The tables of all plans in a file by name: one, or the combinations of its `[matrix]`."""
    table = _read_toml(file)
    matrix = table.pop("matrix", None)
    if matrix is None:
        return {file.stem: table}
    axes = matrix.values() if isinstance(matrix, dict) else []
    if not axes or not all(isinstance(axis, dict) and axis for axis in axes):
        raise InputError(
            f"[matrix] of {file} needs tables of named values: [matrix.rank] with 16 = {{lora.rank = 16}}."
        )
    variants: dict[str, Table] = {}
    for combination in itertools.product(*(axis.items() for axis in axes)):
        name = "_".join(value for value, _ in combination if value)
        merged = table
        for value, overrides in combination:
            if not isinstance(overrides, dict):
                raise InputError(f"{value!r} in [matrix] of {file} must be a table of settings, not {overrides!r}.")
            merged = _merge(merged, overrides)
        if name in variants:
            raise InputError(f"Two combinations of [matrix] in {file} have the name {name!r}.")
        variants[name] = merged
    return variants


@dataclass(frozen=True)
class _PlanTables:
    """A plan before its tables are parsed."""

    name: str
    stages: dict[str, Table]
    about: str = ""
    staged: bool = False
    """Whether settings must name a stage."""


def _read_source(source: Plan | str | Path | None, variant: str | None) -> _PlanTables:
    if source in PLAN_RECIPES:
        return _read_file(Path(str(resources.files("decoder2vec.training.recipes") / f"{source}.toml")), variant)
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        return _read_file(Path(source), variant)
    if variant is not None:
        raise InputError(f"--variant {variant} chooses among the plans of a file; give the file.")
    if isinstance(source, Plan):
        tables = {stage.name: _set_table(stage) for stage in source.stages}
        return _PlanTables(source.name, tables, source.about, staged=len(tables) > 1)
    if source is None or source == "freeze":
        return _PlanTables("embedding", {"embedding": {"freeze": to_table(EMBEDDING)}})
    if source not in recipes():
        raise unknown_name("recipe", source, [*recipes(), *PLAN_RECIPES])
    return _PlanTables(source, {source: {"recipe": source}})


def _read_file(file: Path, variant: str | None) -> _PlanTables:
    variants = read_variants(file)
    if variant is None and len(variants) > 1:
        raise InputError(f"{file} describes {len(variants)} plans; choose one with --variant: {', '.join(variants)}.")
    if variant is not None and variant not in variants:
        raise unknown_name("variant", variant, variants)
    name = variant or next(iter(variants))
    table = variants[name]
    name, about = _text(table, "name", name), _text(table, "about")
    if "stages" in table:
        return _PlanTables(name, _stage_tables(table), about, staged=True)
    return _PlanTables(name, {name: table}, about)


def _set_table(stage: Stage) -> Table:
    """The stage as a table without its unset settings, so that they stay unset."""
    table = stage.to_json()
    for path in stage.unset:
        subtable = table[stage.recipe.name]
        *parents, name = path.split(".")
        for parent in parents:
            subtable = subtable[parent]
        subtable.pop(name, None)
    return table


def _text(table: Table, key: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise InputError(f"{key} must be a text, not {value!r}.")
    return value


def _flag(table: Table, key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{key} must be true or false, not {value!r}.")
    return value


def _stage_tables(table: Table) -> dict[str, Table]:
    """The tables of a file's stages by name; the data named beside the stages hold for all of them."""
    if unknown := table.keys() - _PLAN_KEYS:
        raise unknown_name("setting beside the stages", sorted(unknown)[0], _PLAN_KEYS)
    stages: dict[str, Table] = {}
    for stage in table["stages"] if isinstance(table["stages"], list) else [{}]:
        name = stage.get("name") if isinstance(stage, dict) else None
        if not isinstance(name, str) or not _is_stage_name(name) or name in stages:
            raise InputError(
                "stages is a list of tables, [[stages]], each with a name of its own made of letters, digits, - and _."
            )
        stages[name] = {**stage, "data": {**_subtable(table, "data"), **_subtable(stage, "data")}}
    return stages


def _is_stage_name(name: str) -> bool:
    """Whether a name can be part of the name of a folder, and of a setting."""
    return re.fullmatch(r"[\w-]+", name) is not None


def _check_settings(settings: Sequence[str], tables: Mapping[str, Table]) -> None:
    """Raise unless every setting names a stage and a key."""
    for setting in settings:
        stage, _, key = setting.partition("=")[0].partition(".")
        if stage not in tables:
            raise InputError(f"--set {setting} must begin with the name of a stage: {', '.join(tables)}.")
        if not key:
            raise InputError(f"--set {setting} names a stage but no setting of it: {stage}.training.steps=3.")


def _settings_of(settings: Sequence[str], stage: str) -> list[str]:
    return [setting.removeprefix(f"{stage}.") for setting in settings if setting.startswith(f"{stage}.")]


def _parse_stage(name: str, table: Table, settings: Sequence[str]) -> Stage:
    """A stage from its table, with settings over it."""
    table = copy.deepcopy(table)
    recipe = table.pop("recipe", "freeze")
    kind = recipe_class(recipe)
    own_tables = (recipe, "data")
    qualified = [
        setting if setting.partition("=")[0].split(".")[0] in own_tables else f"{recipe}.{setting}"
        for setting in settings
    ]
    override(table, qualified)
    parts = {part: _subtable(table, part) for part in ("data", "search", recipe)}
    known = {"name", "about", "optional", *parts}
    if unknown := table.keys() - known:
        raise unknown_name("setting", sorted(unknown)[0], known | {"recipe"})
    parsed = from_table(kind, parts[recipe], recipe)
    return Stage(
        _text(table, "name", name),
        parsed,
        from_table(DataFiles, parts["data"], "data"),
        _text(table, "about"),
        parts["search"],
        _flag(table, "optional"),
        frozenset(_paths(to_table(parsed)) - _paths(parts[recipe])),
    )


def _paths(table: Table, prefix: str = "") -> set[str]:
    """The names of all settings in a table, those of its tables with a dot."""
    paths: set[str] = set()
    for key, value in table.items():
        paths |= _paths(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return paths


def _subtable(table: Table, key: str) -> Table:
    subtable = table.get(key, {})
    if not isinstance(subtable, dict):
        raise InputError(f"{key} must be a table, not {subtable!r}.")
    return subtable


def _read_toml(file: Path, depth: int = 0) -> Table:
    """The table of a file, merged over that of the file it extends."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"Cannot read the plan {file}: {error}") from None
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise InputError(f"extends in {file} must be the name of a file, not {base!r}.")
    if depth == _MAX_EXTENDS:
        raise InputError(f"{file} extends {base}, and so on without end; remove one of the `extends`.")
    return _merge(_read_toml(file.parent / base, depth + 1), table)


def _merge(base: Table, overrides: Mapping[str, Any]) -> Table:
    """Overrides over a table, table by table; `stages` of the overrides may be a table by the names of the stages."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        elif key == "stages" and isinstance(old, list) and isinstance(value, dict):
            names = [stage.get("name") for stage in old]
            if unknown := value.keys() - set(names):
                raise unknown_name("stage", sorted(unknown)[0], map(str, names))
            merged[key] = [_merge(stage, value.get(name, {})) for name, stage in zip(names, old, strict=True)]
        else:
            merged[key] = copy.deepcopy(value)
    return merged
