"""Files on the user's disk: cache folders, files and folders that appear atomically, checks of output paths, JSON."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

from decoder2vec.errors import DataFileError, Decoder2VecError, InputError, StorageError
from decoder2vec.package import __version__

TEMPORARY_PREFIX = ".tmp-d2v-"
"""Begins the names of folders in which files are written until they are complete."""
CHECKSUMS_FILE = "checksums.json"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


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


def real_path(path: Path) -> Path:
    """Return the absolute path without links; unlike with `Path.resolve`, links that lead in a circle are no error."""
    return Path(os.path.realpath(path))


def name_in_utf8(name: str) -> str:
    """Return the name of a file with escapes for bytes that are not UTF-8, which no store can keep."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `target` if the block succeeds, and is deleted if it does not.

    Readers see the old file or the new one, never a partial one. What a killed process left is deleted by the next one.

    Raises:
        OSError: The file cannot be written; it is named as `target`.
    """
    with temporary_folder(target) as folder:
        temporary = folder / target.name
        temporary.touch()
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)


@contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` if the block succeeds.

    Args:
        target: The folder to write.
        replace: Replace a folder that is there; a kill leaves the old one or the new one. Otherwise, if another process
            finished the same folder first, its result is kept and ours is dropped.
    """
    with temporary_folder(target) as folder:
        temporary = folder / target.name
        temporary.mkdir()
        yield temporary
        _finish_files(temporary)
        if replace:
            _put_in_place(temporary, target)
            return
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.is_dir():
                raise


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target`, on the same disk, that is deleted in the end; errors of the disk name `target`.

    It is locked, so that a folder without a lock is known to be of a process that was killed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(target.parent.absolute())
    folder, handle = None, None
    try:
        with disk_errors_name(target):
            while folder is None or handle is None:
                folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=target.parent))
                handle = _lock_folder(folder)
            yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if handle:
            os.close(handle)


@contextmanager
def disk_errors_name(target: Path) -> Iterator[None]:
    """Raise errors of the disk as OSError with the name of the file that is written, whichever library writes it."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_ERRORS:  # a failed write does not name the file
            error.filename = str(target)
        raise
    except Decoder2VecError:
        raise
    except Exception as error:  # writers of other libraries raise classes of their own
        if number := next((number for number in _DISK_ERRORS if os.strerror(number) in str(error)), None):
            raise OSError(number, os.strerror(number), str(target)) from error
        raise


def _lock_folder(folder: Path) -> int | None:
    """Lock a new folder and return its handle, or None if another process took it for an abandoned one."""
    if fcntl is None:
        return 0
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(handle, fcntl.LOCK_SH)
    if folder.exists():
        return handle
    os.close(handle)
    return None


def mark_as_used(folder: Path, user: object) -> Callable[[], object]:
    """Lock a folder for reading, so that `unused_folder` knows of it; returns a function that releases it.

    It is also released when `user` is deleted, and when the process ends in any way.
    """
    handle = _lock_folder(folder)
    return weakref.finalize(user, os.close, handle) if handle else lambda: None


@contextmanager
def unused_folder(folder: Path) -> Iterator[bool]:
    """Yield whether no process has marked a folder as used; none can until the block ends."""
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_unused = False
    else:
        is_unused = True
    try:
        yield is_unused
    finally:
        os.close(handle)


@cache
def _delete_abandoned(parent: Path) -> None:
    """Delete temporary folders of processes that were killed; once in a process, since a folder may be large."""
    for folder in parent.glob(f"{TEMPORARY_PREFIX}*") if fcntl else ():
        try:
            handle = os.open(folder, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process is alive
            pass
        finally:
            os.close(handle)


def _put_in_place(new: Path, target: Path) -> None:
    """Rename a folder to `target`; one that is there takes its name, in one step where the system can do that."""
    if not target.exists():
        try:
            new.rename(target)
            return
        except OSError:
            if not target.exists():  # else another thread or process was faster
                raise
    if not _exchange(new, target):
        target.rename(new.with_name("old"))
        new.rename(target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; False if the system cannot."""
    at_working_directory, exchange = -100, 2
    try:
        result = ctypes.CDLL(None).renameat2(
            at_working_directory, os.fsencode(first), at_working_directory, os.fsencode(second), exchange
        )
    except (OSError, AttributeError, TypeError):  # not Linux
        return False
    return bool(result == 0)


def _finish_files(folder: Path) -> None:
    """Give all files in a folder the rights of new files, and wait until they are on the disk.

    Some libraries write files that only their owner reads.
    """
    mode = 0o666 & ~_umask()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)
            with file.open("rb") as written:
                os.fsync(written.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def write_lock(file: Path, what: str) -> Iterator[None]:
    """Hold the lock of the one process that writes something; the system releases it even if the process is killed.

    Args:
        file: The lock file; it is created, and only the holder may delete it.
        what: What is written, for the error message.

    Raises:
        StorageError: Another process holds the lock.
    """
    if fcntl is None:
        yield
        return
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StorageError(f"Another process is writing to {what}; wait until it has ended.") from None
            if file.exists() and os.path.samestat(file.stat(), os.fstat(handle.fileno())):
                yield
                return  # else the last holder has deleted the file since it was opened


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


def check_replaceable(target: Path, written: Iterable[str] = ()) -> None:
    """Raise an error unless a folder is new, empty, or holds nothing but what this package wrote, and can be written.

    This is the rule of every command that writes a folder: nothing is deleted or replaced that it did not write.

    Args:
        target: The folder to write.
        written: Paths of the files inside it that may be replaced; * stands for anything. Their folders may be empty.
    """
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; choose another folder.")
    patterns = [*written, f"{TEMPORARY_PREFIX}*"]
    patterns += [f"{folder}/" for pattern in patterns for folder in PurePosixPath(pattern).parents if folder.name]
    names = sorted(_name_inside(path, target) for path in target.rglob("*") if _is_leaf(path))
    foreign = next((name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)), None)
    if foreign is not None:
        raise InputError(f"{target} is not empty: it holds {foreign.rstrip('/')}; choose another folder.")
    check_writable(target)


def _is_leaf(path: Path) -> bool:
    """Whether a path is anything but a folder that holds something; a link to one is a file of its own."""
    return path.is_symlink() or not path.is_dir() or not any(path.iterdir())


def _name_inside(leaf: Path, folder: Path) -> str:
    """The path inside a folder; of an empty folder with / at its end, as no file ends."""
    is_folder = leaf.is_dir() and not leaf.is_symlink()
    return leaf.relative_to(folder).as_posix() + "/" * is_folder


def check_writable(target: Path) -> None:
    """Raise an error if a path cannot be written, before hours of work.

    A temporary folder is really created, because permission bits alone do not show whether it works; it is created in
    the nearest existing parent folder of the target, so that nothing is left behind.
    """
    try:
        parent = next(folder for folder in target.absolute().parents if folder.exists())
        tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=parent).cleanup()
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


def parse_json(content: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a ValueError, even brackets that are nested too deeply for Python."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_json(file: Path, hint: str) -> Any:
    """Read a JSON file.

    Args:
        file: The file to read.
        hint: What the user can do if the file is malformed, for the error message.
    """
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"Cannot read {file}: {error.strerror}.") from None
    except ValueError as error:
        raise DataFileError(f"{file} holds no JSON ({error}); {hint}, or leave it out.") from None


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, relative to it; others may write and delete there meanwhile."""
    return [
        (Path(parent) / name).relative_to(folder).as_posix() for parent, _, names in os.walk(folder) for name in names
    ]


def write_checksums(folder: Path, names: Iterable[str], known: Mapping[str, str] | None = None) -> None:
    """Record the SHA-256 of files of a folder, for `damaged_files`.

    Args:
        folder: The folder; the record is written into it.
        names: Paths of the files inside it.
        known: Checksums of files that do not change, which are not computed again.
    """
    known = known or {}
    files = {name: known.get(name) or _sha256(folder / name) for name in sorted(names)}
    write_json(folder / CHECKSUMS_FILE, {"files": files, "sha256": _digest(files)})


def read_checksums(folder: Path) -> dict[str, str]:
    """Return path -> SHA-256 as recorded in a folder; nothing if there is no record, as in folders of version 0.1.

    Raises:
        StorageError: The record itself is damaged.
    """
    file = folder / CHECKSUMS_FILE
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
        files: dict[str, str] = document["files"]
        if document["sha256"] == _digest(files):
            return files
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise StorageError(f"{file} is damaged, so the files beside it cannot be verified.")


def damaged_files(folder: Path) -> list[str]:
    """Return the paths of the recorded files of a folder that are missing or not as they were written."""
    damaged = [name for name, sha256 in read_checksums(folder).items() if _sha256(folder / name) != sha256]
    recorded = read_checksums(folder) if damaged else {}  # another process may have written them meanwhile
    return [name for name in damaged if name in recorded and _sha256(folder / name) != recorded[name]]


def _sha256(file: Path) -> str:
    """SHA-256 of a file's content; empty if there is no such file."""
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


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
