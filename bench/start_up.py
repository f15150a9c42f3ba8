"""How long until something happens: `import decoder2vec`, `d2v --help`, loading the built-in model again.

Run: python bench/start_up.py [model]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from measure import report

D2V = str(Path(sys.executable).with_name("d2v"))


def seconds(command: list[str], repeats: int = 5) -> float:
    """The fastest of some runs of a command."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times)


LOAD = """
import sys, time
from decoder2vec import Backbone
Backbone.load("tiny-llama", device="cpu")  # brings in every library
started = time.perf_counter()
Backbone.load(sys.argv[1], device="cpu")
print(time.perf_counter() - started)
"""


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    python = [sys.executable, "-c"]
    bare = seconds([*python, "pass"])
    loads = [subprocess.run([*python, LOAD, model], check=True, capture_output=True, text=True) for _ in range(3)]
    rows = [
        ("import decoder2vec", f"{1000 * (seconds([*python, 'import decoder2vec']) - bare):.0f} ms"),
        ("d2v --help", f"{1000 * seconds([D2V, '--help']):.0f} ms"),
        (f"load {model} again", f"{min(float(done.stdout) for done in loads):.1f} s"),
    ]
    report("start_up", ("what", "time"), rows)


if __name__ == "__main__":
    main()
