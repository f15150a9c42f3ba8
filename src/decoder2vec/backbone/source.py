"""Where weights come from: built-in name, tiny test model, GGUF file, local folder or hub id - always to a folder."""

from __future__ import annotations

import re
from pathlib import Path

from decoder2vec.backbone.builtin import BUILTINS, Say, pull
from decoder2vec.backbone.identity import file_sha256, weight_files
from decoder2vec.errors import BackboneError
from decoder2vec.places import cache_root, whole_folder

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def resolve(name: str | Path, *, revision: str | None = None, say: Say = lambda _: None) -> Path:
    """The local folder, in Hugging Face's layout, of the model called `name`."""
    from decoder2vec.backbone.tiny import TINY, tiny_folder

    text, path = str(name), Path(name).expanduser()
    if text in BUILTINS:
        return pull(text, say=say)
    if text in TINY:
        return tiny_folder(text)
    if path.suffix.lower() == ".gguf":
        return _converted(path, say)
    if path.is_dir():
        return _checked(path)
    if path.exists():
        raise BackboneError(f"{path} is a file, but not a GGUF file; give a model folder or a .gguf file.")
    return _from_hub(text, revision)


def _converted(file: Path, say: Say) -> Path:
    if not file.is_file():
        raise BackboneError(f"There is no GGUF file {file}.")
    folder = cache_root() / "models" / f"{file.stem}-{file_sha256(file)[:12]}"
    if not folder.is_dir():
        from decoder2vec.backbone.gguf import convert

        say(f"converting {file.name} to float32 safetensors, once")
        with whole_folder(folder) as target:
            convert(file, target)
    return folder


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise BackboneError(f"{folder} has no config.json, so it is not a model folder.")
    if not weight_files(folder):
        raise BackboneError(
            f"{folder} has no safetensors weights. Pickled weights are never loaded: convert them once with "
            "transformers' save_pretrained in an environment you trust."
        )
    return folder


def _from_hub(name: str, revision: str | None) -> Path:
    from decoder2vec.backbone.tiny import TINY
    from decoder2vec.errors import unknown_name

    error = unknown_name("model", name, [*BUILTINS, *TINY])
    if not _HUB_ID.fullmatch(name):
        raise BackboneError(f"{error} It is not a folder or .gguf file either.")
    from huggingface_hub import snapshot_download

    try:
        return _checked(Path(snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES))))
    except BackboneError:
        raise
    except Exception as cause:  # the hub client raises a dozen kinds; all mean the same here
        raise BackboneError(
            f"{error} It is no folder or .gguf file, and the model hub did not give it ({type(cause).__name__})."
        ) from cause
