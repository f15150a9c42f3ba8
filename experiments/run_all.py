"""Train all or some plans of a study: results in results/STUDY/NAME.json, encoders in runs/STUDY/NAME.

A name is that of a variant of one of the files experiments/STUDY/*.toml. The FREEZE ladder runs first, one plan at a
time, so that its seconds are comparable; other plans may run in parallel. Learning rates of the SPT study are selected
on dev from the paper's grid. Plans with the same first stage share it: it is trained once if one of them runs before
the others. The masking study needs concepts, which `d2v data concepts` extracts from the SciFact abstracts with
sentences/mixed.tsv.gz as general texts.

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
LADDER = [f"step{step}" for step in range(6)]
GRIDS = {
    "soft_prompt": "training.rate=0.02,0.01,0.005,0.001",
    "kv_prefix": "training.rate=0.02,0.01,0.005,0.001",
    "lora": "training.rate=2e-3,1e-3,5e-4,2e-4",
    "full": "training.rate=2e-4,1e-4,5e-5,2e-5",
    "stsb_lora": "training.rate=1e-3,5e-4,2e-4",
    "stsb_full": "training.rate=1e-4,5e-5,2e-5",
}
"""Learning rates to select from, by the prefix of a plan's name."""


def plan_arguments(study: str) -> dict[str, list[str]]:
    """Return the file and variant of every plan of a study, as arguments of `d2v train`, by name."""
    plans: dict[str, list[str]] = {}
    for file in sorted((HERE / study).glob("*.toml")):
        names = list(read_variants(file))
        plans |= {name: [str(file), *(["--variant", name] if len(names) > 1 else [])] for name in names}
    return plans


def search_options(name: str, grid: str | None) -> list[str]:
    """Return the options of `d2v train` that select hyperparameters of a plan."""
    if name == "search":
        return ["--trials", "30"]
    if grid is None:
        grid = next((grid for prefix, grid in GRIDS.items() if name.startswith(prefix)), None)
    return ["--grid", grid] if grid else []


def train(name: str, plan: list[str], arguments: argparse.Namespace) -> bool:
    """Train one plan with `d2v train`, print its scores, and return whether it succeeded."""
    started = time.perf_counter()
    study = arguments.study
    command = ["d2v", "train", *plan, "--backbone", arguments.backbone, "--data", arguments.data]
    command += ["--out", f"{arguments.runs}/{study}/{name}", "--seeds", arguments.seeds, "--overwrite"]
    command += ["--results", f"{arguments.results}/{study}/{name}.json", *search_options(name, arguments.grid)]
    command += [argument for setting in arguments.set for argument in ("--set", setting)]
    process = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    succeeded = process.returncode == 0
    output = [line for line in process.stdout.splitlines() if line.strip()] if succeeded else [process.stderr[-800:]]
    print(f"== {name} ({seconds:.0f} s)", *output, sep="\n", flush=True)
    return succeeded


def main() -> None:
    """Train the chosen plans; the exit status is 0 if all succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("freeze", "spt", "llm2vec", "masking"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--grid", help="replaces the grid of the study; empty: no grid")
    parser.add_argument("--set", nargs="*", default=[], help="key=value, overrides every plan")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--results", default="results")
    arguments = parser.parse_args()
    plans = plan_arguments(arguments.study)
    if unknown := set(arguments.names) - plans.keys():
        parser.error(f"no plan of {arguments.study} is named {', '.join(sorted(unknown))}")
    names = arguments.names or sorted(plans)
    succeeded = [train(name, plans[name], arguments) for name in LADDER if name in names]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        remaining = [name for name in names if name not in LADDER]
        succeeded += pool.map(lambda name: train(name, plans[name], arguments), remaining)
    sys.exit(not all(succeeded))


if __name__ == "__main__":
    main()
