"""Tables of a TOML file to frozen dataclasses and back: a field's name, type and default are written once."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from decoder2vec.errors import InputError, unknown_name

T = TypeVar("T")


def from_table(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from a table; an unknown key or a value of the wrong type is an error that names it."""
    hints = get_type_hints(kind)
    known = {field.name for field in fields(cast(Any, kind))}
    values = {}
    for key, value in table.items():
        if key not in known:
            raise unknown_name(f"setting in [{where}]" if where else "setting", key, known | _nested(hints))
        values[key] = _value(hints[key], _whole(kind, key, value), f"{where}.{key}" if where else key)
    return kind(**values)


def _whole(kind: type[Any], name: str, value: Any) -> Any:
    """The value; of a part that is given in part, the rest as that field has it by default, not as its type has."""
    field = next(field for field in fields(kind) if field.name == name)
    if field.default_factory is MISSING or not isinstance(value, Mapping):
        return value
    default = field.default_factory()
    return {**to_table(default), **value} if is_dataclass(default) else value


def _nested(hints: Mapping[str, Any]) -> set[str]:
    """`part.key` for the settings of parts, so that a name given without its part is found."""
    return {f"{part}.{field.name}" for part, hint in hints.items() if is_dataclass(hint) for field in fields(hint)}


def to_table(settings: Any) -> dict[str, Any]:
    """A plain dict that JSON can say: the inverse of `from_table`."""
    return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}


def override(table: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A table with `key=value` or `part.key=value` put in; values are read as TOML."""
    import tomllib

    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"{assignment!r} is not of the form key=value.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # a bare word
        *parents, name = path.strip().split(".")
        place = table
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"{assignment!r}: {parent} is {place!r} here, not a table with settings.")
        place[name] = value
    return table


def with_settings(settings: T, changed: Mapping[str, Any]) -> T:
    """A dataclass with some settings changed; `training.rate` names a setting of a part."""
    table = to_table(settings)
    for path, value in changed.items():
        *parents, name = path.split(".")
        place = table
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                raise InputError(f"{path} names no setting: {parent!r} has no parts.")
            place = place[parent]
        place[name] = value
    return from_table(type(settings), table)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_table(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as the type that is asked for."""
    if get_origin(hint) in (Union, types.UnionType):
        return _first_fit(get_args(hint), value, where)
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise InputError(f"{where} must be a table, not {value!r}.")
        return from_table(cast(type, hint), value, where)
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_value(get_args(hint)[0], item, where) for item in items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} must be {_NAMES.get(hint, hint)}, not {value!r}.")
    return value


def _first_fit(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    for hint in hints:
        plain = get_origin(hint) or hint
        if plain is tuple and isinstance(value, list | tuple):
            return _value(hint, value, where)
        if plain is not tuple and isinstance(value, plain) and not isinstance(value, bool):
            return value
    return _value(hints[-1], value, where)


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
