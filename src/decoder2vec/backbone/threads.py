"""Threads on a CPU: as many as there are free cores, which changes while other processes come and go.

The threads of an operation wait for each other at its end. If one of them has no core, because another process needs it
or a container may use half a core, all wait, and OpenMP's threads burn the other cores while they do: one busy process
on a machine of two cores can make a model thirty times slower. So there are no more threads than free cores. Several
batches are computed by one thread each instead, and none waits for another.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MIN_SECONDS = 0.3
"""Load is measured over this time at least; the system counts in hundredths of a second."""
_TOLERANCE = 0.35
"""Share of a core that others may use without costing a thread."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def available_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use, by its affinity and by the CPU quota of its container; 1 or more.

    Args:
        root: Where the files of the system are, for tests.
    """
    return max(1, min([_affinity(), *(math.ceil(quota) for quota in _quotas(root))]))


def _affinity() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of the control groups that this process belongs to, of both versions of the system."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controllers and "cpu")
        for group in (mount / path.lstrip("/"), *(mount / path.lstrip("/")).parents):
            try:
                if controllers:
                    quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (group / "cpu.max").read_text().split()
                if quota.strip() not in ("max", "-1"):
                    yield int(quota) / int(period)
            except (OSError, ValueError):
                pass
            if group == mount:
                break


def map_on_cores(
    function: Callable[[Item], Result], items: Iterable[Item], on_result: Callable[[], object] = lambda: None
) -> list[Result]:
    """Return the results of independent computations in order, computed on all cores at once, each on one.

    BLAS and OpenMP use one thread each: more would wait for each other longer than the small products of a fit take,
    and would round differently on machines with more cores. That is most of what is gained. Python's threads suffice
    for the rest: unlike processes they start at once, and NumPy and scikit-learn mostly compute without the GIL.

    Args:
        function: A function that may run in several threads at once. The libraries it computes with must have been
            imported before: a limit does not reach those that are loaded later.
        items: Its arguments. After an error, or Ctrl-C, no further one is begun.
        on_result: Called in the thread of the caller after each result, such as to report progress.
    """
    from threadpoolctl import threadpool_limits

    one_openmp_thread = (1, "openmp")  # holds for the thread that sets it; the limit of BLAS holds for the process
    with (
        warnings.catch_warnings(),  # scikit-learn changes the filters, which all threads share
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(available_cores(), initializer=threadpool_limits, initargs=one_openmp_thread) as workers,
    ):
        results = []
        for result in workers.map(function, items):
            results.append(result)
            on_result()
        return results


class _CpuTimes(NamedTuple):
    """Seconds since some point in time."""

    wall: float
    busy: float
    """Of all cores and processes."""
    own: float
    """Of this process."""


class ThreadAdjuster:
    """Keeps the number of torch's threads at the number of free cores, unless the user has chosen one.

    A user chooses by an environment variable of OpenMP or MKL, or with `torch.set_num_threads`, before or while a model
    is in use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = _read_times()
        self._free = available_cores()
        self._of_thread = threading.local()  # torch keeps the number for each thread of Python

    def adjust(self) -> None:
        """Set the number of threads by the load since the last call, for what the calling thread computes."""
        import torch

        if getattr(self._of_thread, "is_fixed", False):
            return
        current = torch.get_num_threads()
        if not hasattr(self._of_thread, "default"):
            self._of_thread.default = self._of_thread.last = self._default_threads(current)
        if self._of_thread.last != current:  # chosen by the user
            return
        threads = min(self._of_thread.default, self._measure())
        if threads != current:
            torch.set_num_threads(threads)
            self._of_thread.last = threads

    def workers(self) -> int:
        """How many batches the calling thread should compute at once, at most; 1 where that is not known to pay.

        It is the number of torch's threads before any were given up for other processes: threads that do not wait for
        each other get their share of busy cores, too.
        """
        import torch

        from decoder2vec.backbone.machine import X86

        if getattr(self._of_thread, "is_fixed", False) or platform.machine() not in X86:
            return 1
        current = torch.get_num_threads()
        default = getattr(self._of_thread, "default", None)
        if default is None or self._of_thread.last != current:
            default = self._default_threads(current)
        return current if default is None else min(default, available_cores())

    def share_out(
        self,
        compute: Callable[[Item], Result],
        items: Iterable[Item],
        workers: int,
        on_result: Callable[[Result], object],
    ) -> None:
        """Compute on items in several threads, each with its share of the threads that torch may have.

        Args:
            compute: A function that may run in several threads at once.
            items: Its arguments. After an error, or Ctrl-C, no further one is begun.
            workers: Number of threads.
            on_result: Called in the thread of the caller with each result, in order.
        """
        import torch

        threads, total = torch.get_num_threads(), self.workers()

        def start() -> None:
            self._of_thread.is_fixed = True
            torch.set_num_threads(max(1, total // workers))

        try:
            with ThreadPoolExecutor(workers, initializer=start) as pool:
                for result in pool.map(compute, items):
                    on_result(result)
        finally:
            torch.set_num_threads(threads)  # also of threads that are started later

    @contextmanager
    def fixed_to_one(self) -> Iterator[None]:
        """Context in which the calling thread computes alone, whatever the load: more threads add in other orders."""
        import torch
        from threadpoolctl import threadpool_limits

        threads, was_fixed = torch.get_num_threads(), getattr(self._of_thread, "is_fixed", False)
        self._of_thread.is_fixed = True
        try:
            with threadpool_limits(1, "blas"):  # that of NumPy
                torch.set_num_threads(1)
                yield
        finally:
            torch.set_num_threads(threads)
            self._of_thread.is_fixed = was_fixed

    def _measure(self) -> int:
        """The number of free cores, measured again if enough time has passed."""
        with self._lock:
            if self._times and monotonic() - self._times.wall >= _MIN_SECONDS and (now := _read_times()):
                self._free = min(available_cores(), free_cores(self._times, now, os.cpu_count() or 1))
                self._times = now
            return self._free

    def _default_threads(self, current: int) -> int | None:
        """The current number if torch may have taken it by itself, else None."""
        if any(name in os.environ for name in _THREAD_VARIABLES):
            return None
        cores = {os.cpu_count() or 1, _affinity()}
        halves = {max(1, count // 2) for count in cores}  # where two threads share a core
        return current if current in {*cores, *halves, self._free} else None


def free_cores(before: _CpuTimes, now: _CpuTimes, cores: int) -> int:
    """Return the number of cores that other processes left free between two points in time; 1 or more."""
    others = (now.busy - before.busy - (now.own - before.own)) / (now.wall - before.wall)
    return max(1, min(cores, math.floor(cores - others + _TOLERANCE)))


def _read_times() -> _CpuTimes | None:
    """The times until now; None where the system does not tell them."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _io_wait, irq, soft_irq, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")
    return _CpuTimes(monotonic(), busy, process_time())


THREADS = ThreadAdjuster()
"""The one of this process, since torch's number of threads belongs to the process."""
