"""Files on the user's disk: cache folders, files and folders that appear atomically, checks of output paths, JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, InputError, StorageError
from decoder2vec.package import __version__


def cache_root() -> Path:
    """Return the user's cache folder: $D2V_CACHE, or decoder2vec under the platform's cache folder."""
    if folder := os.environ.get("D2V_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "decoder2vec"


def pretrained_root() -> Path:
    """Return the folder of pre-trained code networks, which later trainings reuse."""
    return cache_root() / "pretrained"


def prefix_kv_root() -> Path:
    """Return the folder of cached keys and values of texts, for training soft prompts."""
    return cache_root() / "prefix_kv"


def vectors_root() -> Path:
    """Return the folder of cached vectors of evaluation texts."""
    return cache_root() / "vectors"


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `target` if the block succeeds, and is deleted if it does not.

    Readers see the old file or the new one, never a partial one; a kill leaves only a `.tmp-` file behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".tmp-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` if the block succeeds.

    If another process finished the same folder first, its result is kept and ours is dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_output_file(target: Path | None, *suffixes: str, sources: Iterable[Path | str | None] = ()) -> None:
    """Raise an error if an output file cannot be written, would overwrite an input, or has the wrong suffix.

    Args:
        target: The file to write; None is fine.
        *suffixes: Allowed suffixes such as ".json"; any if there are none.
        sources: Input files.
    """
    if target is None:
        return
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file for the result.")
    for source in (Path(name) for name in sources if name):
        if source.is_file() and target.exists() and target.samefile(source):
            raise InputError(f"{target} is an input file and would be overwritten; choose another file for the result.")
    if suffixes and target.suffix.lower() not in suffixes:
        raise InputError(f"{target} must end in {' or '.join(suffixes)}: that is what is written.")
    check_writable(target)


def check_writable(target: Path) -> None:
    """Raise an error if a path cannot be written, before hours of work.

    A temporary folder is really created, because permission bits alone do not show whether it works; it is created in
    the nearest existing parent folder of the target, so that nothing is left behind.
    """
    try:
        parent = next(folder for folder in target.absolute().parents if folder.exists())
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=parent).cleanup()
    except OSError as error:
        raise StorageError(f"Cannot write to {target}: {error.strerror or error}; choose another place.") from None


def write_json(target: Path, document: Any, *, allow_nan: bool = True) -> None:
    """Write a document as JSON; an existing file is replaced.

    Args:
        target: The file to write.
        document: A JSON-serialisable document.
        allow_nan: Write NaN and infinity as such; False makes them an error.
    """
    with atomic_file(target) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=allow_nan) + "\n", encoding="utf-8")


def read_json(file: Path, hint: str) -> Any:
    """Read a JSON file.

    Args:
        file: The file to read.
        hint: What the user can do if the file is malformed, for the error message.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"Cannot read {file}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{file} holds no JSON ({error}); {hint}, or leave it out.") from None


def versions() -> dict[str, Any]:
    """Return the versions of all packages that can change a result, and the machine."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {
        "decoder2vec": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "machine": _machine(),
    }


def _machine() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
