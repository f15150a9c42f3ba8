"""Let writes fail and damage files, then look at what the package makes of it: run in children of a `ForkServer`."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from decoder2vec.errors import Decoder2VecError
from toys import training_writers, writers
from toys.writers import CommandFailed

WRITERS = {**writers.WRITERS, **training_writers.WRITERS}

_library = ctypes.CDLL(None)  # the functions of faults.c, which is preloaded
_library.faults_failed.restype = ctypes.c_char_p
_library.faults_count.restype = ctypes.c_long
_FOREVER = 2**62


def writer_names() -> list[str]:
    """The names of all writers."""
    return list(WRITERS)


def prepare(name: str, folder: str) -> int:
    """Write what is there before and after, for the other functions, and return the number of writes."""
    writer, before, after = WRITERS[name], Path(folder, "before"), Path(folder, "after")
    before.mkdir(parents=True)
    with _cache(before):
        writer.before(before)
        old = writer.read(before)
    shutil.copytree(before, after)
    with _cache(after):
        with _failing(after, 0):
            result = writer.write(after)
        new = writer.read(after)
        used = writer.use(after) if writer.use else new
    assert not is_close(new, old), f"{name} writes nothing that is read"
    Path(folder, "expected.json").write_text(json.dumps([old, new, used, result]))
    return int(_library.faults_count())


def fail(name: str, folder: str, first: int, forever: bool, error_number: int) -> str:
    """Let the writes from the `first` on (or this one alone) fail, and write again.

    Returns:
        What is wrong afterwards; nothing if all is as promised.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = Path(scratch, "root")
        shutil.copytree(Path(folder, "before"), root)
        problems, is_written = [], False
        with _cache(root):
            try:
                with _failing(root, first, forever, error_number):
                    result = WRITERS[name].write(root)
                problems += _check_result(name, folder, result)
                is_written = not WRITERS[name].is_cache
            except Exception as error:
                problems += _check_error(error, root)
            problems += [f"{path.name} remains" for path in root.rglob(".tmp*")]
        problems += check(name, folder, str(root), is_written)
    call = _library.faults_failed().decode()
    return f"{name}, write {first} ({call}): {'; '.join(problems)}" if problems else ""


def write(name: str, root: str) -> None:
    """Write, to be killed."""
    with _cache(Path(root)):
        WRITERS[name].write(Path(root))


def write_killed(name: str, root: str, first: int) -> None:
    """Kill this process at a write."""
    with _cache(Path(root)), _failing(Path(root), first, error_number=-1):
        WRITERS[name].write(Path(root))


def check(name: str, folder: str, root: str, is_written: bool = False) -> list[str]:
    """Check that each part is the old or the new one, and (if it was not yet written) that it can be written."""
    writer, (old, new, _, _) = WRITERS[name], _expected(folder)
    problems: list[str] = []
    with _cache(Path(root)):
        try:
            content = _as_json(writer.read(Path(root)))
            problems += [
                f"{part} is neither the old nor the new one"
                for part in sorted({*old, *new, *content})
                if not any(is_close(content.get(part), state.get(part)) for state in (old, new))
            ]
        except Exception as error:
            problems.append(f"cannot be read: {_describe(error)}")
        try:
            if not is_written:
                problems += _check_result(name, folder, writer.write(Path(root)))
            if not is_close(_as_json(writer.read(Path(root))), new):
                problems.append("written again, the content is another" if not is_written else "nothing was written")
        except Exception as error:
            problems.append(f"cannot be written again: {_describe(error)}")
    return problems + [f"{path.name} remains" for path in Path(root).rglob(".tmp-d2v-*")]


def interrupt(name: str, folder: str, first: int) -> list[str]:
    """Leave what a run leaves that a full disk has stopped; returns the files that are not in the result."""
    root = Path(folder, "interrupted")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(Path(folder, "before"), root)
    with _cache(root), suppress(Decoder2VecError, OSError, CommandFailed), _failing(root, first, True, errno.ENOSPC):
        WRITERS[name].write(root)
    return sorted(set(_files(root)) - set(_files(Path(folder, "before"))))


def written_files(name: str, folder: str) -> list[str]:
    """The files that the package will read again."""
    return [file for file in _files(Path(folder, "after")) if not WRITERS[name].for_others or file.startswith("cache/")]


def damage(name: str, folder: str, state: str, file: str, how: str) -> list[str]:
    """Damage a file; returns what is wrong with the result of using it, and of writing again.

    Args:
        name: Name of the writer.
        folder: Folder of `prepare`.
        state: "after" or "interrupted".
        file: Path inside that folder.
        how: Key of `_DAMAGES`.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = Path(scratch, "root")
        shutil.copytree(Path(folder, state), root)
        content = (root / file).read_bytes()
        damaged = _DAMAGES[how](content)
        (root / file).write_bytes(damaged)
        with _cache(root):
            problems = _use_damaged(name, folder, root, state == "after") if damaged != content else []
    return [f"{name}, {file} {how}: {problem}" for problem in problems]


_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "torn": lambda content: content[:-512] + bytes(min(512, len(content))),
}


def _use_damaged(name: str, folder: str, root: Path, is_written: bool) -> list[str]:
    """What is wrong with the results: each is right, or refused by one sentence."""
    writer, (_, new, used, _) = WRITERS[name], _expected(folder)
    problems = []
    try:
        is_used = is_written and not (writer.for_others or writer.is_cache)
        if is_used and not is_close(_as_json((writer.use or writer.read)(root)), used):
            problems.append("it is used without a word")
    except Exception as error:
        problems += _check_error(error)
    try:
        problems += _check_result(name, folder, writer.write(root))
        if not writer.for_others and not is_close(_as_json(writer.read(root)), new):
            problems.append("written again, the content is another")
    except Exception as error:
        problems += _check_error(error)
    return problems


def _check_result(name: str, folder: str, result: Any) -> list[str]:
    expected = _expected(folder)[3]
    return [] if is_close(_as_json(result), expected) else [f"the result is {result}, not {expected}"]


def _check_error(error: Exception, root: Path | None = None) -> list[str]:
    """What is wrong with an error: it is one line, of the package or of the system, and names a file below `root`."""
    message = str(error)
    problems = []
    if not isinstance(error, Decoder2VecError | OSError | CommandFailed):
        problems.append("error of another kind")
    if isinstance(error, CommandFailed) and not message.startswith("error: "):
        problems.append("no error message")
    if "\n" in message.strip():
        problems.append("more than one line")
    if root and str(root) not in message:
        problems.append("no file is named")
    return [f"{', '.join(problems)}: {_describe(error)}"] if problems else []


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _expected(folder: str) -> list[Any]:
    """The old and the new content, what using the new one gives, and the result of writing it."""
    return list(json.loads(Path(folder, "expected.json").read_text()))


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@contextmanager
def _cache(root: Path) -> Iterator[None]:
    os.environ["D2V_CACHE"] = str(root / "cache")
    yield


@contextmanager
def _failing(folder: Path, first: int, forever: bool = False, error_number: int = 0) -> Iterator[None]:
    """Let writes below a folder fail; none if `first` is 0."""
    last = _FOREVER if forever else first
    numbers = (ctypes.c_long(first), ctypes.c_long(last), ctypes.c_int(error_number))
    _library.faults_arm(os.fsencode(folder), *numbers)
    try:
        yield
    finally:
        _library.faults_disarm()


def is_close(a: Any, b: Any) -> bool:
    """Whether two JSON documents are equal, up to what the order of additions changes in a training."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=2e-3, abs_tol=2e-3)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_close, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_close(a[key], b[key]) for key in a)
    return bool(a == b)
