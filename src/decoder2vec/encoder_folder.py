"""The folder of a saved encoder: its files, where it is found, and where it may be written; all without torch."""

from __future__ import annotations

import json
from pathlib import Path

from decoder2vec.storage import check_replaceable

DESCRIPTION_FILE = "encoder.json"
HEAD_FILE = "head.safetensors"
ADAPTER_FOLDER = "adapter"
NAMED_ADAPTERS_FOLDER = "adapters"
BACKBONE_FOLDER = "backbone"
_FILES_OF_0_1 = (
    DESCRIPTION_FILE,
    HEAD_FILE,
    f"{ADAPTER_FOLDER}/adapter*",
    f"{NAMED_ADAPTERS_FOLDER}/*/adapter*",
    f"{BACKBONE_FOLDER}/*",
    "README.md",
    "run.json",
    "results.json",
    "merge.json",
    "seen.npy",
    "seen_texts.npy",
    "log-*.jsonl",
)
"""What version 0.1 wrote into the folder of an encoder; later versions list the files in its description."""
_LATER_FILES = ("report/*.html", "report/*.png", "report/*.svg")
"""What `d2v report` adds to the folder of an encoder."""
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


def check_output_folder(target: Path) -> None:
    """Raise an error if a path holds anything other than what `save` wrote, or cannot be written."""
    check_replaceable(target, _written_files(target))


def _written_files(folder: Path) -> list[str]:
    """Patterns of the files in a folder that `save` wrote; none if it holds no encoder."""
    if not is_encoder_folder(folder):
        return []
    try:
        return [*json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))["files"], *_LATER_FILES]
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or of version 0.1
        return [*_FILES_OF_0_1, *_LATER_FILES]
