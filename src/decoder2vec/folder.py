"""An encoder as a folder on disk: `encoder.json`, adapter and head if there are any, the backbone if asked for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from decoder2vec.adapters.files import read_adapter, write_adapter
from decoder2vec.backbone.adapter import Adapter
from decoder2vec.backbone.load import Backbone
from decoder2vec.errors import BackboneError, InputError
from decoder2vec.heads.affine import Head
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.places import check_writable, whole_folder

_FILE = "encoder.json"
_ADAPTER = "adapter"
_ADAPTERS = "adapters"

AnyHead = Head | LayerwiseHead


def is_encoder(folder: str | Path) -> bool:
    """Does an encoder live there?"""
    return (Path(folder) / _FILE).is_file()


def check_free(target: Path) -> None:
    """Refuse a place where something other than an encoder stands, or where nothing can be written."""
    if target.exists() and not is_encoder(target) and (not target.is_dir() or any(target.iterdir())):
        what = "is not empty and not an encoder" if target.is_dir() else "is a file"
        raise InputError(f"{target} {what}; choose another folder.")
    check_writable(target)


def write_encoder(
    target: Path,
    description: dict[str, Any],
    head: AnyHead | None,
    backbone: Backbone,
    weights: Path | None = None,
    extras: Mapping[str, bytes] | None = None,
) -> None:
    """Write all of it beside the target, then put it in the target's place; nothing is lost if that is cut short.

    `weights` is a folder to copy the model from, if it is to come along. `extras` are further files by name: the
    card and the record of a training run.
    """
    target = target.resolve()  # a link to another disk stays a link
    check_free(target)
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # what a killed save left behind
    with whole_folder(new) as temporary:
        text = json.dumps({**description, "head": head.kind if head else None}, indent=1)
        (temporary / _FILE).write_text(text + "\n", encoding="utf-8")
        if head:
            head.save(temporary / "head.safetensors")
        for name, content in (extras or {}).items():
            (temporary / name).write_bytes(content)
        if backbone.adapter:
            write_adapter(backbone.adapter, temporary / _ADAPTER, backbone)
        for name, adapter in backbone.adapters.items():
            write_adapter(adapter, temporary / _ADAPTERS / name, backbone)
        if weights:
            shutil.copytree(weights, temporary / "backbone")
    if target.exists():
        shutil.rmtree(target)
    new.rename(target)


def read_encoder(home: Path) -> tuple[dict[str, Any], AnyHead | None, Path | None]:
    """The description, the head and the folder of the backbone, if it lives inside."""
    try:
        description = json.loads((home / _FILE).read_text(encoding="utf-8"))
        kind = description["head"]
        for key in ("spec", "backbone_fingerprint"):
            description[key]
    except OSError as error:
        raise InputError(f"{home} is not the folder of a saved encoder: it has no {_FILE}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{home} is not a saved encoder: {error}") from error
    backbone = home / "backbone"
    return description, _read_head(home / "head.safetensors", kind), backbone if backbone.is_dir() else None


def as_saved(backbone: Backbone, home: Path, description: dict[str, Any]) -> Backbone:
    """The backbone as the encoder in that folder reads it, with its adapter; weights that have changed are refused."""
    expected = description["backbone_fingerprint"]
    if backbone.fingerprint != expected:
        raise BackboneError(
            f"The weights of {backbone.name} are not those this encoder was made with "
            f"({backbone.fingerprint}, expected {expected})."
        )
    for folder in sorted((home / _ADAPTERS).glob("*/")):
        backbone.adapters[folder.name] = read_adapter(folder, backbone)
    own = home / _ADAPTER
    return backbone.with_adapter(read_adapter(own, backbone)) if own.is_dir() else backbone


def named_adapter(name: str, home: Path, backbone: Backbone) -> Adapter:
    """The adapter of a saved encoder, to be kept under a name that can be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise InputError(f"An adapter's name has letters, digits, - and _ only, unlike {name!r}.")
    return read_adapter(home / _ADAPTER, backbone)


def _read_head(file: Path, kind: str | None) -> AnyHead | None:
    if kind is None:
        return None
    try:
        return LayerwiseHead.load(file) if kind == LayerwiseHead.kind else Head.load(file, kind)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"The head in {file} cannot be read ({error}); train or save the encoder again.") from error
