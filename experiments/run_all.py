"""Run every plan of a study, or some: results/STUDY/NAME.json for each, encoders under runs/STUDY/.

The ladder of FREEZE runs first and one plan at a time, so that its seconds mean something; other plans may run side by
side. Learning rates of the SPT study come from the paper's grid, selected on dev. Plans with stages share their first
stage, which is trained once if one of them runs before the others. The concepts of the masking study are made by
`d2v data concepts` from the abstracts against sentences/mixed.tsv.gz.

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

from decoder2vec.training.plan import read_variants

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


def plans_of(study: str) -> dict[str, list[str]]:
    """Arguments of `d2v train` for every plan of a study, by name."""
    plans: dict[str, list[str]] = {}
    for file in sorted((HERE / study).glob("*.toml")):
        names = list(read_variants(file))
        plans |= {name: [str(file), *(["--variant", name] if len(names) > 1 else [])] for name in names}
    return plans


def search_options(name: str, grid: str | None) -> list[str]:
    """Options that select hyperparameters of a plan."""
    if name == "search":
        return ["--trials", "30"]
    if grid is None:
        grid = next((grid for start, grid in GRIDS.items() if name.startswith(start)), None)
    return ["--grid", grid] if grid else []


def run(name: str, plan: list[str], arguments: argparse.Namespace) -> bool:
    """Train one plan as a user would; prints the scores, returns whether it succeeded."""
    started = time.perf_counter()
    study = arguments.study
    command = ["d2v", "train", *plan, "--backbone", arguments.backbone, "--data", arguments.data]
    command += ["--out", f"{arguments.runs}/{study}/{name}", "--seeds", arguments.seeds, "--overwrite"]
    command += ["--results", f"{arguments.results}/{study}/{name}.json", *search_options(name, arguments.grid)]
    command += [part for setting in arguments.set for part in ("--set", setting)]
    process = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    succeeded = process.returncode == 0
    output = [line for line in process.stdout.splitlines() if line.strip()] if succeeded else [process.stderr[-800:]]
    print(f"== {name} ({seconds:.0f} s in all)", *output, sep="\n", flush=True)
    return succeeded


def main() -> None:
    """Parse and run; the exit status is 0 if all plans succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    plans = plans_of(arguments.study)
    if unknown := set(arguments.names) - plans.keys():
        parser.error(f"no plan of {arguments.study} is named {', '.join(sorted(unknown))}")
    names = arguments.names or sorted(plans)
    succeeded = [run(name, plans[name], arguments) for name in LADDER if name in names]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rest = [name for name in names if name not in LADDER]
        succeeded += pool.map(lambda name: run(name, plans[name], arguments), rest)
    sys.exit(not all(succeeded))


if __name__ == "__main__":
    main()
