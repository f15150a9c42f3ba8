"""Files and folders appear whole or not at all; what killed processes left is deleted, what others wrote is kept."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from decoder2vec import storage
from decoder2vec.errors import InputError, StorageError
from decoder2vec.storage import atomic_file, atomic_folder, check_replaceable, files_below, temporary_folder, write_lock

_HANGING = """
import sys, time
from pathlib import Path
from decoder2vec.storage import atomic_file

with atomic_file(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hanging(tmp_path):
    """A process that is about to write `file` in the folder of the test."""
    command = [sys.executable, "-c", _HANGING, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_a_killed_process_are_deleted(hanging, tmp_path):
    assert len(names(tmp_path)) == 1
    hanging.send_signal(signal.SIGKILL)
    hanging.wait()
    with atomic_file(tmp_path / "other") as temporary:
        temporary.write_text("whole")
    assert names(tmp_path) == ["other"]


def test_files_of_a_running_process_are_kept(hanging, tmp_path):
    with atomic_file(tmp_path / "other") as temporary:
        temporary.write_text("whole")
    assert len(names(tmp_path)) == 2


def test_hidden_files_of_the_user_are_kept(tmp_path):
    (tmp_path / ".tmp-mine").write_text("mine")
    with atomic_file(tmp_path / "other") as temporary:
        temporary.write_text("whole")
    assert names(tmp_path) == [".tmp-mine", "other"]


def test_folder_taken_for_abandoned_is_made_again(tmp_path, monkeypatch):
    lock, calls = storage._lock_folder, []

    def lock_late(folder):
        if not calls:
            folder.rmdir()  # as another process does between the creation and the lock
        calls.append(folder)
        return lock(folder)

    monkeypatch.setattr(storage, "_lock_folder", lock_late)
    with temporary_folder(tmp_path / "target") as folder:
        assert folder.is_dir()
    assert len(calls) == 2 and names(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "target", replace=True) as temporary:
            (temporary / content).write_text(content)
    assert names(tmp_path) == ["target"] and names(tmp_path / "target") == ["new"]


def test_folder_is_never_absent_while_it_is_replaced(tmp_path):
    target, stop, absent = tmp_path / "target", threading.Event(), []

    def watch():
        while not stop.is_set():
            if not (target / "file").exists():
                absent.append(True)

    with atomic_folder(target) as temporary:
        (temporary / "file").touch()
    if not storage._exchange(target, target):
        pytest.skip("the system cannot exchange two folders")
    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(50):
        with atomic_folder(target, replace=True) as temporary:
            (temporary / "file").touch()
    stop.set()
    watcher.join()
    assert not absent


FULL_DISKS = {
    "python": OSError(errno.ENOSPC, "No space left on device"),
    "safetensors": RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "file size": OSError(errno.EFBIG, "File too large"),
}


def test_folder_that_appears_in_the_last_moment_is_replaced(tmp_path, monkeypatch):
    """Another thread or process puts its folder in place between the look and the renaming."""
    target, rename = tmp_path / "target", Path.rename

    def late(path, name):
        if name == target and not target.exists():
            target.mkdir()
            (target / "theirs").write_text("theirs")
        return rename(path, name)

    monkeypatch.setattr(Path, "rename", late)
    with atomic_folder(target, replace=True) as temporary:
        (temporary / "ours").write_text("ours")
    assert [file.name for file in target.iterdir()] == ["ours"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("error", FULL_DISKS.values(), ids=FULL_DISKS)
def test_error_of_the_disk_names_the_file(tmp_path, error):
    with pytest.raises(OSError) as caught, atomic_file(tmp_path / "vectors.npy"):
        raise error
    assert caught.value.filename == str(tmp_path / "vectors.npy")
    assert caught.value.errno == getattr(error, "errno", errno.ENOSPC)
    assert names(tmp_path) == []


def test_written_files_may_be_replaced_and_others_not(tmp_path):
    check_replaceable(tmp_path / "new")
    check_replaceable(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "0.npy").touch()
    check_replaceable(tmp_path, ["parts/*.npy"])
    (tmp_path / "runs").mkdir()  # what is left where the first file could not be written
    for pattern in ("runs/*", "runs/*.json"):
        check_replaceable(tmp_path, ["parts/*.npy", pattern])
    with pytest.raises(InputError, match="it holds runs; choose another folder"):
        check_replaceable(tmp_path, ["parts/*.npy"])
    (tmp_path / "runs").rmdir()
    with pytest.raises(InputError, match=r"it holds parts/0\.npy; choose another folder"):
        check_replaceable(tmp_path)
    with pytest.raises(InputError, match=r"0\.npy is a file; choose another folder"):
        check_replaceable(tmp_path / "parts" / "0.npy")


@pytest.mark.parametrize("target", ["gone", "."])
def test_link_counts_as_a_file_of_the_user(tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(InputError, match="it holds link"):
        check_replaceable(tmp_path)


def test_lock_has_one_holder(tmp_path):
    def lock_again():
        with write_lock(tmp_path / "lock", "x.npy"):
            pass

    with (
        write_lock(tmp_path / "lock", "x.npy"),
        pytest.raises(StorageError, match=r"Another process is writing to x\.npy; wait"),
    ):
        lock_again()
    with write_lock(tmp_path / "lock", "x.npy"):
        assert os.path.isfile(Path(tmp_path / "lock"))


def test_files_of_a_folder_have_the_rights_of_new_files(tmp_path):
    from safetensors.numpy import save_file

    before = os.umask(0o022)
    try:
        with atomic_folder(tmp_path / "new") as temporary:
            save_file({"a": np.zeros(2, np.float32)}, temporary / "weights.safetensors")  # for the owner alone
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "weights.safetensors").stat().st_mode & 0o777 == 0o644


def test_disk_error_of_another_library_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"Input/output error: '.*target'") as caught, atomic_file(tmp_path / "target"):
        raise RuntimeError("Error while serializing: Input/output error (os error 5)")
    assert caught.value.filename == str(tmp_path / "target")


def test_files_are_listed_while_others_come_and_go(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "kept").touch()
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            with atomic_folder(tmp_path / "other", replace=True) as folder:
                (folder / "file").touch()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert all("a/b/kept" in files_below(tmp_path) for _ in range(500))
    finally:
        stop.set()
        thread.join()
