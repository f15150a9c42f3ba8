"""Tokens per second of the built-in encoder while other processes keep cores busy.

"all cores" is what torch does by itself: as many threads as cores, which spin while they wait for each other. Run it on
a machine that is otherwise quiet.

Run: python bench/busy_machine.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from decoder2vec.config import DEFAULT_ENCODER
from measure import report

SETTINGS = {
    "decoder2vec": {},
    "all cores": {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "active"},
    "all cores, passive": {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
ENCODE = f"""
import json, time
from decoder2vec import Encoder
encoder = Encoder.from_pretrained({DEFAULT_ENCODER!r}, device="cpu", dtype="float32")
texts = [f"The train number {{n}} to the city of {{n % 7}} bridges leaves at {{n % 24}} o'clock." for n in range(60)]
encoder.encode(texts[:4])
tokens, started = encoder.stats.tokens, time.perf_counter()
encoder.encode(texts)
print(json.dumps((encoder.stats.tokens - tokens) / (time.perf_counter() - started)))
"""


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


def tokens_per_second(setting: dict[str, str], repeats: int = 2) -> float:
    """The fastest of several runs in new processes."""
    command, environment = [sys.executable, "-c", ENCODE], {**os.environ, **setting}
    outputs = [subprocess.check_output(command, env=environment, text=True) for _ in range(repeats)]
    return max(json.loads(output.splitlines()[-1]) for output in outputs)


def main() -> None:
    counts = sorted({0, 1, os.cpu_count() or 1})
    speeds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for count in counts:
        with competitors(count):
            for name, setting in SETTINGS.items():
                speeds[name].append(tokens_per_second(setting))
    quiet = speeds["decoder2vec"][0]
    rows = [(name, *(f"{speed:.0f} ({100 * speed / quiet:.0f} %)" for speed in row)) for name, row in speeds.items()]
    columns = ("threads", *(f"tokens/s beside {count} busy processes" for count in counts))
    report("busy_machine", columns, rows, encoder=DEFAULT_ENCODER, dtype="float32", texts=60, cores=os.cpu_count())


if __name__ == "__main__":
    main()
