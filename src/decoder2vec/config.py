"""Configuration as frozen dataclasses: the description of an encoder, tables of TOML or JSON, and fingerprints."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from decoder2vec.errors import EncoderError, InputError, unknown_name

DEFAULT_MAX_LENGTH = 512
DEFAULT_ENCODER = "smollm2-135m-general"
"""The encoder that ships with the package, taken where a command is given none."""
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of prompts for documents; the first that an encoder has is used."""

_ITEMS_PER_PIECE = 4096
"""Items of a list whose JSON is hashed at once."""

T = TypeVar("T")

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def as_tuple(values: Any) -> tuple[Any, ...]:
    """The values; what is no list, such as a text, a path or a number, is the only one."""
    return (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)


@dataclass(frozen=True, order=True)
class Reading:
    """One vector read from the model: which layer, how its tokens are pooled, before or after the final norm."""

    layer: int
    """0 = embeddings, i = after block i; negative numbers count from the top."""
    pooling: str = "mean"
    normed: bool = False
    """True applies the model's final norm first, as Hugging Face does to the last layer only."""
    template: str = ""
    """The template this is read under; empty: the encoder's own."""

    def __str__(self) -> str:
        template = f" of {self.template!r}" if self.template else ""
        return f"layer {self.layer}{' normed' if self.normed else ''}, {self.pooling}{template}"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict; an empty template is omitted."""
        return {key: value for key, value in asdict(self).items() if key != "template" or value}


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that defines an encoder apart from its weights: saved in `encoder.json`."""

    backbone: str
    readings: tuple[Reading, ...]
    """Several readings are concatenated."""
    template: str = "{text}"
    attention: str = "causal"
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"
    normalize: bool | str = False
    """Length of the vectors: as computed, 1 with True, or the root of the dimension with "rms": numbers are then of the
    size 1, which suits classifiers with default settings."""
    similarity: str = "cosine"
    prompts: tuple[tuple[str, str], ...] = ()
    """Named prompts, selected by `prompt_name`; encode_query and encode_document use `query` and `document`."""

    def __post_init__(self) -> None:
        if self.normalize not in (False, True, "rms"):
            raise InputError(f'normalize is False, True or "rms", not {self.normalize!r}.')

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict for JSON."""
        readings = [reading.to_json() for reading in self.readings]
        return {**asdict(self), "readings": readings, "prompts": dict(self.prompts)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EncoderSpec:
        """Inverse of `to_json`; an unknown field is an error, because ignoring it could change vectors silently."""
        try:
            prompts = list(dict(data.get("prompts", {})).items())
            return from_table(cls, {**data, "prompts": prompts})
        except (AttributeError, TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise EncoderError(f"This is not an encoder description of this version: {reason}.") from error


def fingerprint(*parts: Any) -> str:
    """Return a short hash of JSON-serialisable values, which changes when any of them does."""
    total = hashlib.sha256()
    for piece in _json_pieces(parts):
        total.update(piece.encode())
    return total.hexdigest()[:16]


def _json_pieces(value: Any) -> Iterator[str]:
    """The JSON of a value in pieces: that of a million texts at once would take a gigabyte."""
    if not isinstance(value, list | tuple) or not value:
        yield json.dumps(value, sort_keys=True)
        return
    for start in range(0, len(value), _ITEMS_PER_PIECE):
        items = value[start : start + _ITEMS_PER_PIECE]
        if not any(isinstance(item, list | tuple) for item in items):
            yield f"{', ' if start else '['}{json.dumps(items, sort_keys=True)[1:-1]}"
            continue
        for index, item in enumerate(items, start):
            yield ", " if index else "["
            yield from _json_pieces(item)
    yield "]"


def from_table(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a table of TOML or JSON.

    Args:
        kind: The dataclass.
        table: Values of its fields; missing ones take their defaults.
        where: Path of the table within the file, for error messages.

    Raises:
        InputError: A key is unknown or a value has the wrong type; the message names it.
    """
    hints = get_type_hints(kind)
    known = {field.name for field in fields(cast(Any, kind))}
    values = {}
    for key, value in table.items():
        if key not in known:
            raise unknown_name(f"setting in [{where}]" if where else "setting", key, known | _nested_names(hints))
        values[key] = _convert(hints[key], _with_defaults(kind, key, value), f"{where}.{key}" if where else key)
    return kind(**values)


def to_table(settings: Any) -> dict[str, Any]:
    """Return a dataclass as a plain dict for JSON: the inverse of `from_table`."""
    return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}


def key_settings(settings: Any, always: Collection[str] = ("name",)) -> dict[str, Any]:
    """Return the settings that enter a key, as a plain dict: those that differ from their defaults.

    So a setting that a later version adds changes no key. Whoever changes a default must change the key otherwise, such
    as by a format number: else results that were made with the old default are taken for those of the new one.

    Args:
        settings: A dataclass, with nested ones or without.
        always: Names of settings that enter at their defaults, too: `name` tells objectives apart.
    """
    table = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in always or repr(value) != repr(default):  # 1 == 1.0 == True, but they are different settings
            table[field.name] = _plain(value, lambda nested: key_settings(nested, always))
    return table


def override(table: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply assignments such as those of `--set` to a table, in place.

    Args:
        table: The table to change.
        assignments: `key=value` or `table.key=value`; values are parsed as TOML, bare words as strings.
    """
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
        subtable = table
        for parent in parents:
            subtable = subtable.setdefault(parent, {})
            if not isinstance(subtable, dict):
                raise InputError(f"{assignment!r}: {parent} is {subtable!r} here, not a table with settings.")
        subtable[name] = value
    return table


def with_settings(settings: T, changed: Mapping[str, Any]) -> T:
    """Return a dataclass with some settings changed.

    Args:
        settings: The dataclass.
        changed: New values by name; `training.rate` names a field of a nested dataclass.
    """
    table = to_table(settings)
    for path, value in changed.items():
        *parents, name = path.split(".")
        subtable = table
        for parent in parents:
            if not isinstance(subtable.get(parent), dict):
                raise InputError(f"{path} names no setting: {parent!r} is not a table.")
            subtable = subtable[parent]
        subtable[name] = value
    return from_table(type(settings), table)


def _with_defaults(kind: type[Any], name: str, value: Any) -> Any:
    """The value of a field; a partial table is completed from the default of the field, not of the field's type."""
    field = next(field for field in fields(kind) if field.name == name)
    if field.default_factory is MISSING or not isinstance(value, Mapping):
        return value
    default = field.default_factory()
    if not is_dataclass(default) or hasattr(default, "from_table"):  # which chooses a class by the table itself
        return value
    return {**to_table(default), **value}


def _nested_names(hints: Mapping[str, Any]) -> set[str]:
    """`table.key` for the fields of nested dataclasses, to suggest them for a key given without its table."""
    return {f"{table}.{field.name}" for table, hint in hints.items() if is_dataclass(hint) for field in fields(hint)}


def _plain(value: Any, as_dict: Callable[[Any], dict[str, Any]] = to_table) -> Any:
    if is_dataclass(value):
        return as_dict(value)
    return [_plain(item, as_dict) for item in value] if isinstance(value, tuple) else value


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the type of its field."""
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_to_union(get_args(hint), value, where)
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise InputError(f"{where} must be a table, not {value!r}.")
        parse = getattr(hint, "from_table", None)
        return parse(value, where) if parse else from_table(cast(type, hint), value, where)
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(get_args(hint)[0], item, where) for item in items)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} must be {_TYPE_NAMES.get(hint, hint)}, not {value!r}.")
    return value


def _convert_to_union(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    """The value as the first type of a union that fits."""
    for hint in hints:
        if is_dataclass(hint) and isinstance(value, Mapping):
            return _convert(hint, value, where)
        origin = get_origin(hint) or hint
        if origin is tuple and isinstance(value, list | tuple):
            return _convert(hint, value, where)
        if origin is not tuple and isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            return _finite(value, where) if origin is float else value
    return _convert(hints[-1], value, where)


def _finite(value: float, where: str) -> float:
    """The number as a float; no setting means anything with NaN or infinity."""
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{where} must be a finite number, not {number}.")
    return number
