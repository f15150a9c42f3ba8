"""The number of threads follows affinity, quota, load and the user; work on all cores has one thread each."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn.cluster  # loads an OpenMP of its own
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from decoder2vec import package
from decoder2vec.backbone import threads
from decoder2vec.backbone.threads import ThreadAdjuster, available_cores, free_cores, map_on_cores

CORES = 4


@pytest.fixture
def machine(monkeypatch):
    """A machine of four cores whose times can be set, with torch's default number of threads."""
    before = torch.get_num_threads()
    for name in threads._THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    times = [threads._CpuTimes(0.0, 0.0, 0.0)]
    monkeypatch.setattr(threads, "_read_times", lambda: times[-1])
    monkeypatch.setattr(threads, "monotonic", lambda: times[-1].wall)
    monkeypatch.setattr(threads, "available_cores", lambda: CORES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CORES), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)
    torch.set_num_threads(CORES)

    def pass_time(seconds, others, own=1.0):
        """Let time pass in which other processes use some cores, and this one uses some."""
        wall, busy, used = times[-1]
        times.append(threads._CpuTimes(wall + seconds, busy + seconds * (others + own), used + seconds * own))

    yield pass_time
    torch.set_num_threads(before)


def groups(root, files):
    """A system whose process is in the control groups of `files`: path -> content."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 64), ("6400000 100000", 64)]
)
def test_quota_of_a_container_limits_cores(quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    root = groups(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    assert available_cores(root) == cores


def test_lowest_quota_of_all_parents_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000",
        "sys/fs/cgroup/cpu.max": "800000 100000",
    }
    assert available_cores(groups(tmp_path, files)) == 3


def test_quota_of_the_first_version_of_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    files = {
        "proc/self/cgroup": "2:memory:/docker/a\n1:cpu,cpuacct:/docker/a\n0::/\n",
        "sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert available_cores(groups(tmp_path, files)) == 2


def test_system_without_control_groups_has_its_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5), raising=False)
    assert available_cores(tmp_path) == 5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_limits_the_threads_of_a_process():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import torch; from decoder2vec.backbone.threads import THREADS\n"
        "THREADS.adjust(); print(torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name not in threads._THREAD_VARIABLES}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True) == "1\n"


@pytest.fixture
def half_a_core():
    """A control group with half a core; its file for process ids."""
    candidates = (  # of the first and of the second version
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        ("/sys/fs/cgroup", {"cpu.max": "50000 100000"}),
    )
    for mount, limits in candidates:
        folder = Path(mount) / f"decoder2vec-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
            try:
                for name, value in limits.items():
                    (folder / name).write_text(value)
            except OSError:
                folder.rmdir()
                continue
        except OSError:
            continue
        yield folder / "cgroup.procs"
        folder.rmdir()
        return
    pytest.skip("control groups cannot be made here")


def test_process_with_half_a_core_has_one_thread(half_a_core):
    script = (
        "import os, sys, torch, transformers.modeling_utils\n"  # before, since half a core takes twice as long
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "import decoder2vec as d2v\n"
        "d2v.Encoder.from_pretrained('tiny-llama', device='cpu').encode(['a text'])\n"
        "print(torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name not in threads._THREAD_VARIABLES}
    command = [sys.executable, "-c", script, str(half_a_core)]
    assert subprocess.check_output(command, env=environment, text=True) == "1\n"


@pytest.mark.parametrize(("others", "expected"), [(0.0, 4), (0.3, 4), (1.0, 3), (2.6, 1), (4.0, 1), (9.0, 1)])
def test_free_cores_are_those_that_others_leave(others, expected):
    before, now = threads._CpuTimes(10.0, 100.0, 7.0), threads._CpuTimes(12.0, 100.0 + 2 * (others + 1.5), 10.0)
    assert free_cores(before, now, CORES) == expected


def test_threads_make_room_for_others_and_come_back(machine):
    adjuster = ThreadAdjuster()
    adjuster.adjust()
    assert torch.get_num_threads() == 4
    machine(1, others=2)
    adjuster.adjust()
    assert torch.get_num_threads() == 2
    machine(0.1, others=0)  # too short to tell
    adjuster.adjust()
    assert torch.get_num_threads() == 2
    machine(1, others=0)
    adjuster.adjust()
    assert torch.get_num_threads() == 4


def test_choice_of_a_user_is_kept(machine):
    torch.set_num_threads(3)
    adjuster = ThreadAdjuster()
    machine(1, others=4)
    adjuster.adjust()
    assert torch.get_num_threads() == 3


def test_later_choice_of_a_user_is_kept(machine):
    adjuster = ThreadAdjuster()
    adjuster.adjust()
    torch.set_num_threads(3)
    machine(1, others=4)
    adjuster.adjust()
    assert torch.get_num_threads() == 3


def test_fixed_to_one_thread_whatever_the_load(machine):
    adjuster = ThreadAdjuster()
    adjuster.adjust()
    machine(1, others=CORES - 1)
    adjuster.adjust()
    assert torch.get_num_threads() == 1  # this number is the adjuster's own, and follows the load
    with adjuster.fixed_to_one():
        machine(1, others=0)
        adjuster.adjust()
        assert torch.get_num_threads() == 1
    machine(1, others=0)
    adjuster.adjust()
    assert torch.get_num_threads() == CORES


def test_batches_are_computed_on_all_cores_whatever_the_load(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    adjuster = ThreadAdjuster()
    assert adjuster.workers() == CORES
    machine(1, others=CORES - 1)
    adjuster.adjust()
    assert (torch.get_num_threads(), adjuster.workers()) == (1, CORES)
    with adjuster.fixed_to_one():
        assert adjuster.workers() == 1
    torch.set_num_threads(3)  # a user's choice
    assert adjuster.workers() == 3
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert adjuster.workers() == 1


def test_quota_limits_how_many_batches_are_computed_at_once(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    assert ThreadAdjuster().workers() == 1


def test_shared_work_has_the_threads_of_torch_among_it(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    adjuster = ThreadAdjuster()
    together, results = threading.Barrier(2, timeout=60), []

    def compute(number):
        together.wait()  # two at once
        adjuster.adjust()
        return number, torch.get_num_threads()

    adjuster.share_out(compute, range(6), 2, results.append)
    assert results == [(number, CORES // 2) for number in range(6)]
    assert torch.get_num_threads() == CORES
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [CORES]


def test_error_ends_shared_work(machine):
    begun = []

    def compute(number):
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        ThreadAdjuster().share_out(compute, range(1000), 2, lambda _: None)
    assert len(begun) < 1000
    assert torch.get_num_threads() == CORES


def test_environment_of_a_user_is_kept(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    adjuster = ThreadAdjuster()
    machine(1, others=4)
    adjuster.adjust()
    assert torch.get_num_threads() == 4


def test_system_that_does_not_tell_its_load_keeps_all_threads(machine, monkeypatch):
    monkeypatch.setattr(threads, "_read_times", lambda: None)
    ThreadAdjuster().adjust()
    assert torch.get_num_threads() == 4


def test_spinning_is_limited_unless_a_user_chose(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    for name in package.WAIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    package.limit_spinning()
    assert os.environ.pop("GOMP_SPINCOUNT") == package._SPIN_COUNT
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    package.limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


def numbers_of_threads():
    return {(library["filepath"], library["num_threads"]) for library in threadpool_info()}


def test_work_on_all_cores_has_one_thread_each(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: CORES)
    all_begun = threading.Barrier(CORES, timeout=60)

    def job(_):
        all_begun.wait()
        return threading.get_ident(), numbers_of_threads()

    with threadpool_limits(3):
        before, filters = numbers_of_threads(), list(warnings.filters)
        assert {count for _, count in before} == {3}
        results = map_on_cores(job, range(CORES))
        assert numbers_of_threads() == before and warnings.filters == filters
    assert len({thread for thread, _ in results}) == CORES
    assert all({count for _, count in limited} == {1} for _, limited in results)


def test_work_on_all_cores_equals_a_loop_in_order(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: CORES)
    vectors = np.random.default_rng(0).normal(size=(20, 60, 8)).astype(np.float32)

    def clusters(rows):
        return sklearn.cluster.MiniBatchKMeans(3, n_init="auto", random_state=0).fit(rows).labels_.tolist()

    assert map_on_cores(clusters, vectors) == [clusters(rows) for rows in vectors]
    assert map_on_cores(clusters, []) == []


def divide_by_zero():
    raise ZeroDivisionError


@pytest.fixture
def keyboard():
    """Let Ctrl-C raise KeyboardInterrupt, which processes in the background ignore."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def press_ctrl_c():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(divide_by_zero, ZeroDivisionError), (press_ctrl_c, KeyboardInterrupt)],
    ids=["error", "Ctrl-C"],
)
def test_error_or_ctrl_c_ends_the_work_on_all_cores(monkeypatch, keyboard, fault, error):
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    begun = []

    def job(number):
        begun.append(number)
        if number == 1:
            fault()
        time.sleep(0.02)

    with pytest.raises(error):
        map_on_cores(job, range(200))
    assert len(begun) < 200
