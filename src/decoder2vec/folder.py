"""An encoder as a folder on disk: `encoder.json`, the head if there is one, and the backbone if it was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from decoder2vec.errors import InputError
from decoder2vec.heads import Head
from decoder2vec.places import whole_folder

_FILE = "encoder.json"


def is_encoder(folder: str | Path) -> bool:
    """Does an encoder live there?"""
    return (Path(folder) / _FILE).is_file()


def write_encoder(target: Path, description: dict[str, Any], head: Head | None, backbone: Path | None) -> None:
    """Write all of it beside the target, then put it in the target's place; nothing is lost if that is cut short."""
    if target.exists() and not is_encoder(target) and (target.is_file() or any(target.iterdir())):
        raise InputError(f"{target} is not empty and not an encoder; choose another folder.")
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # what a killed save left behind
    with whole_folder(new) as temporary:
        text = json.dumps({**description, "head": head.kind if head else None}, indent=1)
        (temporary / _FILE).write_text(text + "\n", encoding="utf-8")
        if head:
            head.save(temporary / "head.safetensors")
        if backbone:
            shutil.copytree(backbone, temporary / "backbone")
    if target.exists():
        shutil.rmtree(target)
    new.rename(target)


def read_encoder(home: Path) -> tuple[dict[str, Any], Head | None, Path | None]:
    """The description, the head and the folder of the backbone, if it lives inside."""
    try:
        description = json.loads((home / _FILE).read_text(encoding="utf-8"))
        kind = description["head"]
        for key in ("spec", "backbone_fingerprint"):
            description[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{home} is not a saved encoder: {error}") from error
    head = Head.load(home / "head.safetensors", kind) if kind else None
    return description, head, home / "backbone" if (home / "backbone").is_dir() else None
