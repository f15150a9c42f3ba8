"""Where things are kept on the user's disk, and how a file or folder appears there all at once."""

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
from decoder2vec.version import __version__


def cache_root() -> Path:
    """The user's cache folder: $D2V_CACHE, or decoder2vec under the platform's cache folder."""
    if chosen := os.environ.get("D2V_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "decoder2vec"


def pretrained_root() -> Path:
    """The folder of encoders that were pre-trained and may be wanted again."""
    return cache_root() / "pretrained"


def prefix_kv_root() -> Path:
    """The folder of keys and values of texts behind which a prompt is trained."""
    return cache_root() / "prefix_kv"


def vectors_root() -> Path:
    """The folder of vectors that encoders gave to the texts of evaluations."""
    return cache_root() / "vectors"


def check_writable(target: Path) -> None:
    """Refuse a place that cannot be written, before hours of work: by making a folder, for permissions tell not all.

    Nothing is left behind, so it is made where the first of the target's folders that are missing would be.
    """
    try:
        home = next(folder for folder in target.absolute().parents if folder.exists())
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=home).cleanup()
    except OSError as error:
        raise StorageError(f"Cannot write to {target}: {error.strerror or error}; choose another place.") from None


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """A temporary path that becomes `target` when the block ends well, and vanishes when it does not.

    Readers see the old file or the new one, never a half; a kill leaves only a `.tmp-` file behind.
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
    """A temporary folder that becomes `target` when the block ends well.

    If another process finished the same folder first, its result stands and ours is dropped.
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


def check_target(target: Path | None, *endings: str, sources: Iterable[Path | str | None] = ()) -> None:
    """Refuse a file that would be written over what is read, that cannot be written, or is named as another kind."""
    if target is None:
        return
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file for the result.")
    for source in (Path(name) for name in sources if name):
        if source.is_file() and target.exists() and target.samefile(source):
            raise InputError(f"{target} is read, and would be written over; choose another file for the result.")
    if endings and target.suffix.lower() not in endings:
        raise InputError(f"{target} must end in {' or '.join(endings)}: that is what is written.")
    check_writable(target)


def write_json(target: Path, document: Any, *, allow_nan: bool = True) -> None:
    """The document as a file, one that is there already replaced."""
    with atomic_file(target) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=allow_nan) + "\n", encoding="utf-8")


def versions() -> dict[str, Any]:
    """Versions of all that can change a number, and the machine."""
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


def load_json(file: Path, cure: str) -> Any:
    """What a file holds; one that cannot be read is an error that names it and the cure."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"Cannot read {file}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{file} holds no JSON ({error}); {cure}, or leave it out.") from None
