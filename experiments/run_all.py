"""Run every plan of a study, or some: results/STUDY/NAME.json for each, encoders under runs/STUDY/.

The ladder of FREEZE runs first and one by one, so that its seconds mean something; the rest may run side by side.
Learning rates of the SPT study come from the paper's grid, chosen on dev. Plans with stages share their first stage,
which is trained once if one of them runs before the others.
The concepts of the masking study are made by `d2v data concepts` from the abstracts against sentences/mixed.tsv.gz.
Run: python experiments/run_all.py freeze|spt|llm2vec|masking [NAME ...] --data DIR [--backbone NAME]
     [--seeds 0,1,2] [--jobs 1] [--grid training.rate=0.02,0.01] [--set compile_blocks=true ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(os.path.relpath(Path(__file__).parent))
LADDER = [f"step{number}" for number in range(6)]
GRIDS = {
    "soft_prompt": "training.rate=0.02,0.01,0.005,0.001",
    "kv_prefix": "training.rate=0.02,0.01,0.005,0.001",
    "lora": "training.rate=2e-3,1e-3,5e-4,2e-4",
    "full": "training.rate=2e-4,1e-4,5e-5,2e-5",
    "stsb_lora": "training.rate=1e-3,5e-4,2e-4",
    "stsb_full": "training.rate=1e-4,5e-5,2e-5",
}
"""Rates to choose from, by how the name of a plan begins."""


def extras(name: str, grid: str | None) -> list[str]:
    """What a plan is run with besides its own settings."""
    if name == "search":
        return ["--trials", "30"]
    if grid is None:
        grid = next((grid for start, grid in GRIDS.items() if name.startswith(start)), None)
    return ["--grid", grid] if grid else []


def run(name: str, arguments: argparse.Namespace) -> bool:
    """One plan, as a user would run it; prints what it found, returns whether it ended well."""
    started = time.perf_counter()
    study = arguments.study
    command = ["d2v", "train", str(HERE / study / f"{name}.toml"), "--backbone", arguments.backbone]
    command += ["--data", arguments.data, "--out", f"{arguments.runs}/{study}/{name}", "--seeds", arguments.seeds]
    command += ["--results", f"{arguments.results}/{study}/{name}.json", "--overwrite", *extras(name, arguments.grid)]
    command += [part for setting in arguments.set for part in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    well = done.returncode == 0
    shown = [line for line in done.stdout.splitlines() if line.strip()] if well else [done.stderr[-800:]]
    print(f"== {name} ({seconds:.0f} s in all)", *shown, sep="\n", flush=True)
    return well


def main() -> None:
    """Parse and run; the exit status says whether all plans ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=("freeze", "spt", "llm2vec", "masking"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--grid", help="instead of the study's own; empty: none")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over every plan")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--results", default="results")
    arguments = parser.parse_args()
    names = arguments.names or sorted(file.stem for file in (HERE / arguments.study).glob("*.toml"))
    ended = [run(name, arguments) for name in LADDER if name in names]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        ended += pool.map(lambda name: run(name, arguments), [name for name in names if name not in LADDER])
    sys.exit(not all(ended))


if __name__ == "__main__":
    main()
