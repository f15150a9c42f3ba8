"""The folder of a saved encoder or reranker: its files, where it is, where it may be written; all without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoder2vec.errors import EncoderError
from decoder2vec.maths.probability import ProbabilityCurve
from decoder2vec.storage import check_replaceable, parse_json, write_json

DESCRIPTION_FILE = "encoder.json"
RERANKER_FILE = "reranker.json"
"""Describes a saved reranker, as `encoder.json` does an encoder."""
HEAD_FILE = "head.safetensors"
ADAPTER_FOLDER = "adapter"
NAMED_ADAPTERS_FOLDER = "adapters"
SENTENCE_TOKENS_FOLDER = "sentence_tokens"
BACKBONE_FOLDER = "backbone"
_FILES_OF_0_1 = (
    DESCRIPTION_FILE,
    RERANKER_FILE,
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
_PROBABILITIES = "probabilities"
"""Where the description of an encoder has its calibration."""
BUILTIN_ENCODERS = Path(__file__).parent / "encoders"
"""Folder of the encoders and rerankers that ship with the package."""


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder contains a saved encoder."""
    return (Path(folder) / DESCRIPTION_FILE).is_file()


def is_reranker_folder(folder: str | Path) -> bool:
    """Whether a folder contains a saved reranker."""
    return (Path(folder).expanduser() / RERANKER_FILE).is_file()


def saved_encoder_folder(name: str | Path) -> Path | None:
    """The folder of the saved encoder of that name: a path, or an encoder that ships with the package; else None."""
    candidates = (Path(name).expanduser(), BUILTIN_ENCODERS / name)
    return next((folder for folder in candidates if is_encoder_folder(folder)), None)


def saved_reranker_folder(name: str | Path) -> Path | None:
    """The folder of the saved reranker of that name: a path, or one that ships with the package; else None."""
    candidates = (Path(name).expanduser(), BUILTIN_ENCODERS / name)
    return next((folder for folder in candidates if is_reranker_folder(folder)), None)


def encoder_path(name: str | Path) -> Path:
    """The folder of the saved encoder of that name; if there is none, the name as a path."""
    return saved_encoder_folder(name) or Path(name).expanduser()


def check_output_folder(target: Path) -> None:
    """Raise an error if a path holds anything other than what `save` wrote, or cannot be written."""
    check_replaceable(target, _written_files(target))


def probabilities_json(curves: Mapping[str, ProbabilityCurve]) -> dict[str, Any]:
    """Return what the description of an encoder says about its calibration; nothing if it has none."""
    return {_PROBABILITIES: {score: curve.to_json() for score, curve in curves.items()}} if curves else {}


def read_probabilities(description: Mapping[str, Any], folder: Path) -> dict[str, ProbabilityCurve]:
    """Return the calibration of an encoder by the kind of score; empty if it has none."""
    try:
        curves = description.get(_PROBABILITIES, {}).items()
        return {score: ProbabilityCurve.from_json(curve) for score, curve in curves}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise EncoderError(
            f"The probabilities in {folder / DESCRIPTION_FILE} are damaged ({error}); run `d2v calibrate` again."
        ) from None


def write_probabilities(folder: Path, curves: Mapping[str, ProbabilityCurve]) -> None:
    """Write a calibration into the description of a saved encoder; everything else stays as it is."""
    file = folder / DESCRIPTION_FILE
    write_json(file, {**parse_json(file.read_text(encoding="utf-8")), **probabilities_json(curves)})


def _written_files(folder: Path) -> list[str]:
    """Patterns of the files in a folder that `save` wrote; none if it holds neither an encoder nor a reranker."""
    if not (is_encoder_folder(folder) or is_reranker_folder(folder)):
        return []
    description = DESCRIPTION_FILE if is_encoder_folder(folder) else RERANKER_FILE
    try:
        return [*parse_json((folder / description).read_text(encoding="utf-8"))["files"], *_LATER_FILES]
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or of version 0.1
        return [*_FILES_OF_0_1, *_LATER_FILES]
