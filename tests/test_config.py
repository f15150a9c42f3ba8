"""Tests of `decoder2vec.config`: dataclasses from tables of TOML and back."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field, make_dataclass, replace

import pytest

from decoder2vec.config import fingerprint, from_table, key_settings, override, to_table
from decoder2vec.errors import InputError
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import OBJECTIVES, objective_config
from decoder2vec.training.objectives.objective import ObjectiveConfig
from decoder2vec.training.recipes.freeze import FreezeRecipe, LatentSource


@dataclass(frozen=True)
class Wheel:
    size: int = 26
    tyre: str = "slick"


@dataclass(frozen=True)
class Bike:
    name: str = "bike"
    gears: int = 3
    weight: float = 9.5
    bell: bool = False
    colours: tuple[str, ...] = ()
    saddle: int | float = 1
    route: str | tuple[int, ...] = "all"
    rear: Wheel = field(default_factory=Wheel)
    wheels: tuple[Wheel, ...] = (Wheel(),)


FULL = """
name = "racer"
gears = 22
weight = 7
bell = true
colours = ["red", "blue"]
saddle = 0.5
route = [1, 2, -1]

[rear]
size = 28

[[wheels]]
size = 20

[[wheels]]
tyre = "studded"
"""


def test_table_becomes_a_dataclass():
    expected = Bike(
        name="racer",
        gears=22,
        weight=7.0,
        bell=True,
        colours=("red", "blue"),
        saddle=0.5,
        route=(1, 2, -1),
        rear=Wheel(28),
        wheels=(Wheel(20), Wheel(tyre="studded")),
    )
    result = from_table(Bike, tomllib.loads(FULL))
    assert result == expected
    assert isinstance(result.weight, float)


def test_missing_keys_take_their_defaults():
    assert from_table(Bike, {}) == Bike()
    assert from_table(Bike, {"rear": {}}) == Bike()


@pytest.mark.parametrize("settings", [Bike(), from_table(Bike, tomllib.loads(FULL))])
def test_round_trip_through_json(settings):
    assert from_table(Bike, json.loads(json.dumps(to_table(settings)))) == settings


@pytest.mark.parametrize(
    "recipe",
    [
        FreezeRecipe(),
        FreezeRecipe(
            latents=(LatentSource("prompteol", "mean", (0, 3, -1), True), LatentSource(layers="0.5:1.0")),
            widths=(0.25, 512, 1.0),
            hidden=0,
            pretrain="none",
            training=Schedule(epochs=3, rate=0.1),
            changes=("identical", "case"),
        ),
    ],
)
def test_recipe_round_trip_through_json(recipe):
    loaded = from_table(FreezeRecipe, json.loads(json.dumps(to_table(recipe))))
    assert loaded == recipe
    assert [type(width) for width in loaded.widths] == [type(width) for width in recipe.widths]


@pytest.mark.parametrize(
    ("table", "field_name", "expected"),
    [
        ({"colours": "red"}, "colours", ("red",)),
        ({"route": 3}, "route", (3,)),
        ({"route": "1:2"}, "route", "1:2"),
        ({"saddle": 2}, "saddle", 2),
        ({"wheels": {"size": 3}}, "wheels", (Wheel(3),)),
    ],
)
def test_single_value_becomes_a_tuple_of_one(table, field_name, expected):
    result = getattr(from_table(Bike, table), field_name)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"gear": 3}, "Unknown setting 'gear'. Did you mean gears"),
        ({"rear": {"sise": 3}}, r"Unknown setting in \[rear\] 'sise'. Did you mean size"),
        ({"wheels": [{"size": 1}, {"colour": 3}]}, r"Unknown setting in \[wheels\] 'colour'"),
    ],
)
def test_unknown_key_suggests_the_nearest(table, message):
    with pytest.raises(InputError, match=message):
        from_table(Bike, table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"gears": 2.5}, "gears must be a whole number, not 2.5"),
        ({"gears": "two"}, "gears must be a whole number, not 'two'"),
        ({"gears": True}, "gears must be a whole number, not True"),
        ({"weight": "light"}, "weight must be a number, not 'light'"),
        ({"weight": False}, "weight must be a number, not False"),
        ({"bell": 1}, "bell must be true or false, not 1"),
        ({"name": 5}, "name must be a text, not 5"),
        ({"colours": ["red", 5]}, "colours must be a text, not 5"),
        ({"saddle": True}, "saddle must be a number, not True"),
        ({"saddle": "high"}, "saddle must be a number, not 'high'"),
        ({"route": [1, "x"]}, "route must be a whole number, not 'x'"),
        ({"rear": 28}, "rear must be a table, not 28"),
        ({"rear": {"size": "big"}}, "rear.size must be a whole number, not 'big'"),
        ({"wheels": [5]}, "wheels must be a table, not 5"),
    ],
)
def test_value_of_the_wrong_type_is_named(table, message):
    with pytest.raises(InputError, match=message):
        from_table(Bike, table)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("gears=7", {"gears": 7}),
        ("weight=1e-3", {"weight": 1e-3}),
        ("bell=true", {"bell": True}),
        ("name=racer", {"name": "racer"}),
        ('name="7"', {"name": "7"}),
        ("name=a=b", {"name": "a=b"}),
        ("name=", {"name": ""}),
        ("colours=['red', \"blue\"]", {"colours": ["red", "blue"]}),
        ("route=0.67:1.0", {"route": "0.67:1.0"}),
        ("saddle = 0.5", {"saddle": 0.5}),
        ("rear.size=28", {"rear": {"size": 28}}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
    ],
)
def test_assignment_is_parsed_as_toml_or_bare_word(assignment, expected):
    assert override({}, [assignment]) == expected


def test_later_assignments_override_earlier_ones():
    table = {"name": "racer", "rear": {"size": 28, "tyre": "slick"}}
    result = override(table, ["rear.size=20", "gears=1", "gears=2"])
    assert result == {"name": "racer", "rear": {"size": 20, "tyre": "slick"}, "gears": 2}


@pytest.mark.parametrize("assignment", ["gears", "", "gears 7"])
def test_malformed_assignment_is_refused(assignment):
    with pytest.raises(InputError, match="not of the form key=value"):
        override({}, [assignment])


@pytest.mark.parametrize(
    ("table", "assignment"), [({"gears": 3}, "gears.low=1"), ({"wheels": [{"size": 20}]}, "wheels.size=3")]
)
def test_setting_of_a_value_that_is_not_a_table_is_refused(table, assignment):
    with pytest.raises(InputError, match="not a table"):
        override(table, [assignment])


def test_partial_table_is_completed_from_the_field_default():
    assert from_table(FreezeRecipe, {"training": {"epochs": 2}}).training == Schedule(epochs=2, rate=3e-4)
    assert from_table(FreezeRecipe, {"pretraining": {"rate": 0.5}}).pretraining == Schedule(
        epochs=6, batch=256, rate=0.5
    )


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("a", 1, None, True, 0.5),
        ([], (), {}, [[]]),
        ({"b": [1, 2], "a": "é"}, ["x", {"d": 1, "c": ("y",)}]),
        ([f"text {n}" for n in range(10_000)], [(n, "b") for n in range(9_000)], [["c"], "d", *range(5_000)]),
    ],
)
def test_fingerprint_is_the_hash_of_the_whole_json(parts):
    expected = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    assert fingerprint(*parts) == expected


# --- keys


def test_a_setting_that_is_added_with_a_default_changes_no_key():
    """Whether the class of the settings, or one of a nested table, has more settings than before."""
    longer_wheel = make_dataclass("Wheel", [("spokes", int, 32)], bases=(Wheel,), frozen=True)
    longer_bike = make_dataclass("Bike", [("lock", str, "none")], bases=(Bike,), frozen=True)
    before = Bike(gears=22, rear=Wheel(28), wheels=(Wheel(), Wheel(20)))
    after = longer_bike(gears=22, rear=longer_wheel(28), wheels=(longer_wheel(), longer_wheel(20)))
    assert to_table(after) != to_table(before)
    assert key_settings(after) == key_settings(before)
    assert key_settings(replace(after, lock="chain")) != key_settings(before)
    assert key_settings(replace(after, rear=longer_wheel(28, spokes=36))) != key_settings(before)


def test_settings_that_differ_have_different_keys():
    bikes = [
        *(Bike(), Bike(gears=4), Bike(bell=True), Bike(saddle=1.0), Bike(saddle=True), Bike(route=(1,))),
        *(
            Bike(rear=Wheel(tyre="studded")),
            Bike(wheels=(Wheel(), Wheel())),
            Bike(wheels=(Wheel(20),)),
            Bike(wheels=()),
        ),
    ]
    assert len({fingerprint(key_settings(bike)) for bike in bikes}) == len(bikes)
    assert key_settings(Bike()) == {"name": "bike"}


def test_a_nested_table_with_a_default_of_its_own_differs_from_the_default_of_its_class():
    @dataclass(frozen=True)
    class Tandem:
        rear: Wheel = field(default_factory=lambda: Wheel(28))

    keys = [key_settings(Tandem(wheel)) for wheel in (Wheel(28), Wheel(), Wheel(20))]
    assert keys == [{}, {"rear": {}}, {"rear": {"size": 20}}]


def test_objectives_with_default_settings_have_different_keys():
    @dataclass(frozen=True)
    class Recipe:
        objective: ObjectiveConfig = field(default_factory=lambda: objective_config({}))

    keys = [fingerprint(key_settings(Recipe(objective_config({"name": name})))) for name in OBJECTIVES]
    assert len(set(keys)) == len(keys)
