"""Tokens per second of the built-in encoder while other processes keep cores busy.

Several batches at once, one batch at a time on as many threads as there are free cores, and one thread are measured in
turns in one process. "All cores" is what torch does by itself: as many threads as cores, which spin or sleep while they
wait for each other. Run it on a machine that is otherwise quiet.

Run: python bench/busy_machine.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from decoder2vec import Encoder
from decoder2vec.backbone.threads import THREADS, ThreadAdjuster
from decoder2vec.config import DEFAULT_ENCODER
from measure import report

TEXTS = [f"The train number {n} to the city of {n % 7} bridges leaves at {n % 24} o'clock." for n in range(120)]
ROUNDS = 3
ALL_CORES = {"OMP_NUM_THREADS": str(os.cpu_count())}
SETTINGS = {
    "all cores": {**ALL_CORES, "OMP_WAIT_POLICY": "active"},
    "all cores, passive": {**ALL_CORES, "OMP_WAIT_POLICY": "passive"},
}
"""Environments that torch reads when it is imported."""


@contextmanager
def competitors(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(name: str) -> dict[str, float]:
    """The best speed of several runs of the ways to compute, in turns."""
    encoder = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu", dtype="float32")

    def speed() -> float:
        tokens, started = encoder.stats.tokens, time.perf_counter()
        encoder.encode(TEXTS)
        return (encoder.stats.tokens - tokens) / (time.perf_counter() - started)

    def one_batch() -> float:
        with mock.patch.object(ThreadAdjuster, "workers", lambda _: 1):
            return speed()

    def one_thread() -> float:
        with THREADS.fixed_to_one():
            return speed()

    ways: dict[str, Callable[[], float]] = {"decoder2vec": speed, "one batch at a time": one_batch}
    ways = {name: one_batch} if name in SETTINGS else {**ways, "one thread": one_thread}
    encoder.encode(TEXTS[:4])
    speeds = [{way: run() for way, run in ways.items()} for _ in range(ROUNDS)]
    return {way: max(of[way] for of in speeds) for way in ways}


def in_new_process(name: str, environment: dict[str, str]) -> dict[str, float]:
    """The same measured in a process of its own."""
    command = [sys.executable, __file__, name]
    output = subprocess.check_output(command, env={**os.environ, **environment}, text=True)
    return dict(json.loads(output.splitlines()[-1]))


def main() -> None:
    counts = sorted({0, 1, os.cpu_count() or 1})
    speeds: list[dict[str, float]] = []
    for count in counts:
        with competitors(count):
            measured = in_new_process("decoder2vec", {})
            for name, environment in SETTINGS.items():
                measured |= in_new_process(name, environment)
        speeds.append(measured)
    quiet = speeds[0]["decoder2vec"]
    rows = [(way, *(f"{of[way]:.0f} ({100 * of[way] / quiet:.0f} %)" for of in speeds)) for way in speeds[0]]
    columns = ("threads", *(f"tokens/s beside {count} busy processes" for count in counts))
    report("busy_machine", columns, rows, encoder=DEFAULT_ENCODER, dtype="float32", texts=len(TEXTS))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
