"""Prune a model in steps of 10 % and by its loss curve, train each with lora.toml, and measure the encoding cost.

Writes results/l3prune/NAME.json for full, remove_10 ... remove_90, small and large; models and encoders go to
runs/l3prune/. Models that exist there are not pruned again. With --cost nothing is trained: only the cost of existing
results is measured, so that trainings can run in parallel and costs be measured later on an idle machine.
Run: python experiments/l3prune/run.py [NAME ...] --data DIR [--backbone NAME] [--seeds 0,1,2] [--jobs 1]
     [--grid training.rate=1e-3,5e-4] [--set compile_blocks=true ...] [--cost]
Then: python experiments/l3prune/draw.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(os.path.relpath(Path(__file__).parent))
KEPT_SHARES = {f"remove_{percent}": f"{100 - percent}%" for percent in range(10, 100, 10)}
NAMES = ("full", *KEPT_SHARES, "small", "large")


def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command and capture its output."""
    return subprocess.run(command, capture_output=True, text=True)


def prune(name: str, arguments: argparse.Namespace) -> str | None:
    """Return the model to train, pruned if it does not exist yet; None, with a message, if pruning fails."""
    if name == "full":
        return str(arguments.backbone)
    folder = Path(arguments.runs) / "l3prune" / "models" / name
    if not (folder / "config.json").is_file():
        command = ["d2v", "prune", arguments.backbone, "--out", str(folder), "--keep", KEPT_SHARES.get(name, name)]
        if name in ("small", "large"):
            command += ["--triplets", f"{arguments.data}/nli/triplets.tsv.gz", "--plot"]
        process = run_command(command)
        if process.returncode:
            print(f"== {name} is skipped: {process.stderr[-400:].strip()}", flush=True)
            return None
    return str(folder)


def train(name: str, model: str, arguments: argparse.Namespace) -> str:
    """Train one model and return the output to print."""
    command = ["d2v", "train", str(HERE / "lora.toml"), "--backbone", model, "--data", arguments.data]
    command += ["--out", f"{arguments.runs}/l3prune/{name}", "--seeds", arguments.seeds, "--overwrite"]
    command += ["--results", str(results_file(name, arguments))]
    command += ["--grid", arguments.grid] if arguments.grid else []
    command += [argument for setting in arguments.set for argument in ("--set", setting)]
    process = run_command(command)
    return f"== {name}\n{process.stdout if process.returncode == 0 else process.stderr[-800:]}"


def results_file(name: str, arguments: argparse.Namespace) -> Path:
    """Return the file for the results of one model."""
    return Path(arguments.results) / "l3prune" / f"{name}.json"


def add_cost(name: str, model: str, arguments: argparse.Namespace) -> None:
    """Add to a results file how the model was pruned and what encoding costs.

    The cost is measured in a process of its own, so that its peak memory is not that of another model.
    """
    file = results_file(name, arguments)
    if not file.is_file():
        return
    results = json.loads(file.read_text(encoding="utf-8"))
    results["backbone"]["name"] = model
    pruning = Path(model) / "pruning.json"
    if pruning.is_file():
        results["pruning"] = json.loads(pruning.read_text(encoding="utf-8"))
    process = run_command([sys.executable, str(HERE / "cost.py"), model, "--data", arguments.data])
    if process.returncode:
        print(f"== {name}: the cost was not measured: {process.stderr[-400:].strip()}", flush=True)
    else:
        results["cost"] = json.loads(process.stdout.splitlines()[-1])
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Prune, train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []])
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--grid", help="settings to select from on dev")
    parser.add_argument("--set", nargs="*", default=[], help="key=value, overrides the plan")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--results", default="results")
    parser.add_argument("--cost", action="store_true", help="only measure the cost of existing results")
    arguments = parser.parse_args()
    models = {name: model for name in arguments.names or NAMES if (model := prune(name, arguments))}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for output in pool.map(lambda name: train(name, models[name], arguments), [] if arguments.cost else models):
            print(output, flush=True)
    for name, model in models.items():  # one at a time, so that the seconds are comparable
        add_cost(name, model, arguments)


if __name__ == "__main__":
    main()
