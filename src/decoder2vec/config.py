"""Every choice that makes an encoder, as frozen dataclasses that turn into JSON and into a stable fingerprint."""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from decoder2vec.errors import EncoderError, InputError, unknown_name

DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, order=True)
class Reading:
    """One vector read from the model: which layer, how its tokens are pooled, before or after the final norm."""

    layer: int
    """0 = embeddings, i = after block i; negative numbers count from the top."""
    pooling: str = "mean"
    normed: bool = False
    """True applies the model's final norm first, as Hugging Face does to the last layer only."""
    template: str = ""
    """The prompt this is read under; empty: the encoder's own."""

    def __str__(self) -> str:
        prompt = f" of {self.template!r}" if self.template else ""
        return f"layer {self.layer}{' normed' if self.normed else ''}, {self.pooling}{prompt}"

    def to_json(self) -> dict[str, Any]:
        """A plain dict; what is not said in it is the default."""
        return {key: value for key, value in asdict(self).items() if key != "template" or value}


@dataclass(frozen=True)
class EncoderSpec:
    """All that an encoder is, apart from its weights: saved as `encoder.json`."""

    backbone: str
    readings: tuple[Reading, ...]
    """Several readings are concatenated."""
    template: str = "{text}"
    attention: str = "causal"
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"
    normalize: bool = False
    similarity: str = "cosine"
    prompts: tuple[tuple[str, str], ...] = ()
    """Named instructions, chosen by `prompt_name`; `query` and `document` serve encode_query / encode_document."""

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        readings = [reading.to_json() for reading in self.readings]
        return {**asdict(self), "readings": readings, "prompts": dict(self.prompts)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EncoderSpec:
        """The inverse of `to_json`; an unknown field is an error, since it would change vectors unseen."""
        fields = dict(data)
        try:
            readings = tuple(Reading(**reading) for reading in fields.pop("readings"))
            prompts = tuple(dict(fields.pop("prompts", {})).items())
            return cls(readings=readings, prompts=prompts, **fields)
        except (TypeError, KeyError) as error:
            raise EncoderError(f"This is not an encoder description of this version: {error}.") from error


def fingerprint(*parts: Any) -> str:
    """A short hash that changes when any part does; parts are anything JSON can say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


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
    if not is_dataclass(default) or hasattr(default, "from_table"):  # which chooses a class by the table itself
        return value
    return {**to_table(default), **value}


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
        parse = getattr(hint, "from_table", None)
        return parse(value, where) if parse else from_table(cast(type, hint), value, where)
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
