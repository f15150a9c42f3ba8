"""Where things are kept on the user's disk, and how a file or folder appears there all at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decoder2vec.errors import InputError


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
        raise InputError(f"Cannot write to {target}: {error.strerror or error}; choose another place.") from None


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
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
def whole_folder(target: Path) -> Iterator[Path]:
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
