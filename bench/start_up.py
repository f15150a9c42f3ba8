"""Start-up times: `import decoder2vec`, `d2v --help`, and loading a model that is already on disk.

Run: python bench/start_up.py [model]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from measure import best_seconds, report

D2V = str(Path(sys.executable).with_name("d2v"))
LOAD = """
import sys, time
from decoder2vec import Backbone
Backbone.load("tiny-llama", device="cpu")  # imports every library
started = time.perf_counter()
Backbone.load(sys.argv[1], device="cpu")
print(time.perf_counter() - started)
"""


def command_seconds(command: list[str], repeats: int = 5) -> float:
    """Return the seconds of the fastest of several runs of a command."""
    return best_seconds(lambda: subprocess.run(command, check=True, capture_output=True), repeats)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    python = [sys.executable, "-c"]
    interpreter = command_seconds([*python, "pass"])
    loads = [subprocess.run([*python, LOAD, model], check=True, capture_output=True, text=True) for _ in range(3)]
    rows = [
        ("import decoder2vec", f"{1000 * (command_seconds([*python, 'import decoder2vec']) - interpreter):.0f} ms"),
        ("d2v --help", f"{1000 * command_seconds([D2V, '--help']):.0f} ms"),
        (f"load {model} again", f"{min(float(process.stdout) for process in loads):.1f} s"),
    ]
    report("start_up", ("what", "time"), rows)


if __name__ == "__main__":
    main()
