"""Every write of every writer fails or is where the process is killed, and every file it wrote is damaged.

The old content stays or the new one is complete, an error is one sentence that names the file, nothing temporary
remains, and the same call again gives the right result. `make test` tries some; `make soak` tries every write and
every file, and kills processes 3,000 times at random moments.
"""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toys.forks import ForkServer

QUICK = (
    "encoder",
    "reranker",
    "embed .npy",
    "embed .jsonl",
    "embed .parquet",
    "embed folder",
    "latents",
    "index create",
    "index add",
    "index delete",
    "index ann",
    "index tune",
    "index migrate by map",
    "calibrate",
    "train soft prompt",
    "match page",
    "concepts",
    "matcher",
    "merge",
    "prune",
    "d2v prune --vocabulary",
    "export cross-encoder",
    "export peft",
    "export transformers",
    "export sentence-transformers",
    "tiny model",
    "d2v embed",
)
SLOW = (
    "index create with encoder",
    "index fill",
    "index folder",
    "index migrate",
    "calibrate copy",
    "calibrate index",
    "train lora",
    "train full",
    "train freeze",
    "train distilled",
    "train stages",
    "train reranker",
    "train bridge",
    "trajectory",
    "evaluate",
    "analyze",
    "sweep",
    "report",
    "merge models",
    "d2v prune --vocabulary of an encoder",
    "export onnx",
    "gguf",
    "d2v embed --lance",
    "d2v train --curve",
    "d2v choose",
    "d2v index",
    "d2v data mine",
)
KILLED = {"embed .npy": 1000, "embed folder": 1000, "index add": 1000, "index migrate by map": 400, "train lora": 400}
"""Writers that are killed, and how often by `make soak`."""


@pytest.fixture(scope="module")
def children(own_cache, tmp_path_factory):
    """Runs the functions of toys.faults in processes whose writes can fail."""
    if sys.platform != "linux" or not shutil.which("cc"):
        pytest.skip("needs Linux and a C compiler named cc")
    folder = tmp_path_factory.mktemp("children")
    library, source = folder / "faults.so", Path(__file__).parent / "toys" / "faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with ForkServer(folder, "toys.faults", library) as server:
        yield server


@pytest.fixture(scope="module")
def prepared(children, tmp_path_factory):
    """prepared(name) -> a folder with what is there before and after a writer, and the number of its writes."""
    folders = {}

    def prepare(name):
        if name not in folders:
            folder = tmp_path_factory.mktemp("writer")
            folders[name] = str(folder), children.call("prepare", name, str(folder))
        return folders[name]

    return prepare


def some(items, count):
    """`count` of the items, evenly spaced."""
    indices = {round(index * (len(items) - 1) / (count - 1)) for index in range(count)} if items else ()
    return [items[index] for index in sorted(indices)]


def test_every_writer_is_tested(children):
    assert sorted(children.call("writer_names")) == sorted(QUICK + SLOW)


# --- writes that fail -----------------------------------------------------------------------------------------------

FULL, BROKEN = (True, errno.ENOSPC), (False, errno.EIO)
"""From a write on the disk is full; one write fails, and the next succeeds."""


def problems_of_faults(children, name, folder, faults):
    problems = [children.call("fail", name, folder, *fault) for fault in faults]
    return [problem for problem in problems if problem]


def alternating(count):
    return [(number, *(FULL, BROKEN)[number % 2]) for number in range(1, count + 1)]


@pytest.mark.parametrize("name", QUICK)
def test_failed_write_loses_nothing(children, prepared, name):
    folder, count = prepared(name)
    assert problems_of_faults(children, name, folder, some(alternating(count), 2 if "train" in name else 4)) == []


@pytest.mark.soak
@pytest.mark.parametrize("name", QUICK + SLOW)
def test_no_failed_write_loses_anything(children, prepared, name):
    folder, count = prepared(name)
    both = [(number, *fault) for number in range(1, count + 1) for fault in (FULL, BROKEN)]
    assert problems_of_faults(children, name, folder, both if name in QUICK else alternating(count)) == []


# --- files that are damaged -----------------------------------------------------------------------------------------

DAMAGES = ("empty", "cut in half", "torn")


def damageable_files(children, name, folder, count):
    """(state, file): all files that are read again, and those of a run that was stopped after two thirds."""
    written = [("after", file) for file in children.call("written_files", name, folder)]
    return written + [("interrupted", file) for file in children.call("interrupt", name, folder, count * 2 // 3)]


@pytest.mark.parametrize(
    "name",
    [
        "encoder",
        "embed .npy",
        "embed folder",
        "latents",
        "index add",
        "index tune",
        "index migrate by map",
        "matcher",
        "train soft prompt",
    ],
)
def test_damaged_file_is_refused_or_written_again(children, prepared, name):
    files = some(damageable_files(children, name, *prepared(name)), 6)
    for index, (state, file) in enumerate(files):
        how = DAMAGES[index % len(DAMAGES)]
        assert children.call("damage", name, prepared(name)[0], state, file, how) == []


@pytest.mark.soak
@pytest.mark.parametrize("name", QUICK + SLOW)
def test_every_damaged_file_is_refused_or_written_again(children, prepared, name):
    problems = [
        problem
        for state, file in damageable_files(children, name, *prepared(name))
        for how in DAMAGES
        for problem in children.call("damage", name, prepared(name)[0], state, file, how)
    ]
    assert problems == []


# --- processes that are killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KILLED)
def test_kill_at_a_write_loses_and_doubles_nothing(children, prepared, tmp_path, name):
    folder, count = prepared(name)
    root = shutil.copytree(Path(folder, "before"), tmp_path / "root")
    for number in some(range(1, count + 1), 4):
        children.kill("write_killed", name, str(root), number)
    assert children.call("check", name, folder, str(root)) == []


@pytest.mark.soak
@pytest.mark.parametrize("name", KILLED)
def test_thousands_of_kills_lose_and_double_nothing(children, prepared, tmp_path, name):
    folder, _ = prepared(name)
    rng, root, killed = random.Random(), tmp_path / "root", 0
    while killed < KILLED[name]:
        shutil.copytree(Path(folder, "before"), root)
        started = time.monotonic()
        children.call("write", name, str(root))
        duration = time.monotonic() - started  # on this machine at this time
        shutil.rmtree(root)
        shutil.copytree(Path(folder, "before"), root)
        for _ in range(30):
            killed += children.kill("write", name, str(root), after=rng.uniform(0, duration))
        assert children.call("check", name, folder, str(root)) == []
        shutil.rmtree(root)
        print(f"{name}: killed {killed} times", flush=True)
