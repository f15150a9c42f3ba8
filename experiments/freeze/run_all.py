"""Run every plan of this folder, or some: results/freeze/NAME.json for each, encoders under runs/freeze/.

The ladder runs first and one by one, so that its seconds mean something; the rest may run side by side.
Run: python experiments/freeze/run_all.py --data DIR [--backbone NAME] [--seeds 0,1,2,3,4] [--jobs 1] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(os.path.relpath(Path(__file__).parent))
LADDER = [f"step{number}" for number in range(6)]


def run(name: str, arguments: argparse.Namespace) -> str:
    """One plan, as a user would run it; returns what to print."""
    started = time.perf_counter()
    command = ["d2v", "train", str(HERE / f"{name}.toml"), "--backbone", arguments.backbone]
    command += ["--data", arguments.data, "--out", f"{arguments.runs}/{name}", "--seeds", arguments.seeds]
    command += ["--results", f"{arguments.results}/{name}.json", "--overwrite"]
    command += ["--search", "30"] if name == "search" else []
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    shown = (
        [line for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else [done.stderr[-800:]]
    )
    return f"== {name} ({seconds:.0f} s in all)\n" + "\n".join(shown)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", default="runs/freeze")
    parser.add_argument("--results", default="results/freeze")
    arguments = parser.parse_args()
    names = arguments.names or sorted(file.stem for file in HERE.glob("*.toml"))
    for name in [name for name in LADDER if name in names]:
        print(run(name, arguments), flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for text in pool.map(lambda name: run(name, arguments), [name for name in names if name not in LADDER]):
            print(text, flush=True)


if __name__ == "__main__":
    main()
