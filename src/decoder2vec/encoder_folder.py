"""The folder of a saved encoder: its files, and where it is found. It is found without importing torch."""

from __future__ import annotations

from pathlib import Path

DESCRIPTION_FILE = "encoder.json"
HEAD_FILE = "head.safetensors"
ADAPTER_FOLDER = "adapter"
NAMED_ADAPTERS_FOLDER = "adapters"
BACKBONE_FOLDER = "backbone"
BUILTIN_ENCODERS = Path(__file__).parent / "encoders"
"""Folder of the encoders that ship with the package."""


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder contains a saved encoder."""
    return (Path(folder) / DESCRIPTION_FILE).is_file()


def saved_encoder_folder(name: str | Path) -> Path | None:
    """The folder of the saved encoder of that name: a path, or an encoder that ships with the package; else None."""
    candidates = (Path(name).expanduser(), BUILTIN_ENCODERS / name)
    return next((folder for folder in candidates if is_encoder_folder(folder)), None)


def encoder_path(name: str | Path) -> Path:
    """The folder of the saved encoder of that name; if there is none, the name as a path."""
    return saved_encoder_folder(name) or Path(name).expanduser()
