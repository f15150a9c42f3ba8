"""Cut a model at every tenth and where the loss curve says, train each by lora.toml, and measure what it costs.

results/l3prune/NAME.json for each of full, remove_10 ... remove_90, small and large; models and encoders under
runs/l3prune/. A model that is cut already is taken as it is. With --cost nothing is trained: the cost is measured for
results that are there, so that trainings may share a machine and costs need not.
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
REMOVED = {f"remove_{percent}": f"{100 - percent}%" for percent in range(10, 100, 10)}
NAMES = ("full", *REMOVED, "small", "large")


def called(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command as a user would give it."""
    return subprocess.run(command, capture_output=True, text=True)


def cut(name: str, arguments: argparse.Namespace) -> str | None:
    """The model to train, cut if it was not before; None and a line to read where it cannot be."""
    if name == "full":
        return str(arguments.backbone)
    folder = Path(arguments.runs) / "l3prune" / "models" / name
    if not (folder / "config.json").is_file():
        command = ["d2v", "prune", arguments.backbone, "--out", str(folder), "--keep", REMOVED.get(name, name)]
        if name in ("small", "large"):
            command += ["--triplets", f"{arguments.data}/nli/triplets.tsv.gz", "--plot"]
        done = called(command)
        if done.returncode:
            print(f"== {name} is left out: {done.stderr[-400:].strip()}", flush=True)
            return None
    return str(folder)


def train(name: str, model: str, arguments: argparse.Namespace) -> str:
    """One training; returns what to print."""
    command = ["d2v", "train", str(HERE / "lora.toml"), "--backbone", model, "--data", arguments.data]
    command += ["--out", f"{arguments.runs}/l3prune/{name}", "--seeds", arguments.seeds, "--overwrite"]
    command += ["--results", str(results_of(name, arguments)), *(["--grid", arguments.grid] if arguments.grid else [])]
    command += [part for setting in arguments.set for part in ("--set", setting)]
    done = called(command)
    return f"== {name}\n{done.stdout if done.returncode == 0 else done.stderr[-800:]}"


def results_of(name: str, arguments: argparse.Namespace) -> Path:
    """Where the results of one cut go."""
    return Path(arguments.results) / "l3prune" / f"{name}.json"


def note_cost(name: str, model: str, arguments: argparse.Namespace) -> None:
    """Put beside the scores what was cut and what it costs to encode, in a process of its own for the memory's sake."""
    file = results_of(name, arguments)
    if not file.is_file():
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    found["backbone"]["name"] = model
    pruning = Path(model) / "pruning.json"
    if pruning.is_file():
        found["pruning"] = json.loads(pruning.read_text(encoding="utf-8"))
    done = called([sys.executable, str(HERE / "cost.py"), model, "--data", arguments.data])
    if done.returncode:
        print(f"== {name}: cost was not measured: {done.stderr[-400:].strip()}", flush=True)
    else:
        found["cost"] = json.loads(done.stdout.splitlines()[-1])
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Cut, train, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []])
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--grid", help="settings to choose from on dev")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the plan")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--results", default="results")
    parser.add_argument("--cost", action="store_true", help="only measure the cost, for results that are there")
    arguments = parser.parse_args()
    models = {name: model for name in arguments.names or NAMES if (model := cut(name, arguments))}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for text in pool.map(lambda name: train(name, models[name], arguments), [] if arguments.cost else models):
            print(text, flush=True)
    for name, model in models.items():  # one by one, so that seconds mean something
        note_cost(name, model, arguments)


if __name__ == "__main__":
    main()
