"""Adapt every checkpoint of a pre-training and score it before and after: when does a decoder become a good encoder?

`python experiments/trajectory/adapt.py --checkpoints CKPT --data DATA --out OUT` trains LoRA on the NLI triplets at
every checkpoint with three seeds, all read by the mean of the last layer, and writes OUT/trajectory.json and a page.
Interrupted, the same command continues. Several processes may share the checkpoints: each takes some with `--only` and
has an OUT of its own, and `--join OUT1 OUT2 --out OUT` then puts their results together. `--limit 200 --steps 20
--seeds 0` with checkpoints of size `tiny` takes a few minutes on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import decoder2vec as d2v
from decoder2vec.report.trajectory import TRAJECTORY_FILE, TrajectoryResult
from decoder2vec.storage import write_json

TASKS = "stsb,sickr,quora-mini,scifact,20newsgroups,banking77,emotion,mrpc,quora"


def join(parts: list[Path], out: Path) -> TrajectoryResult:
    """Put the results of some checkpoints each together, in the order of training."""
    results = [TrajectoryResult.load(part) for part in parts]
    names = [name for result in results for name in result.checkpoints]
    joined = replace(
        results[0],
        checkpoints=tuple(sorted(names, key=lambda name: int(name.removeprefix("step")))),
        runs=tuple(run for result in results for run in result.runs),
        key="joined",
        command="; ".join(result.command for result in results),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / TRAJECTORY_FILE, joined.to_json())
    return joined


def run(arguments: argparse.Namespace) -> TrajectoryResult:
    """Adapt and score every checkpoint."""
    training = {"steps": arguments.steps, "batch": arguments.batch, "rate": arguments.rate}
    revisions = [name for name in arguments.only.split(",") if name]
    return d2v.Trajectory(arguments.checkpoints, revisions).run(
        arguments.data,
        arguments.out,
        tasks=arguments.tasks,
        adaptation=arguments.recipe,
        training_data=arguments.data / "nli" / "triplets.tsv.gz",
        trained_on=["sts"],
        settings=["read.pooling=mean", *(f"training.{name}={value}" for name, value in training.items())],
        seeds=[int(seed) for seed in arguments.seeds.split(",")],
        instruction=arguments.instruction,
        limit=arguments.limit,
        device=arguments.device,
        notify=lambda message: sys.stdout.write(f"{message}\n"),
        command=f"python {' '.join(sys.argv)}",
        layer=-1,
        pooling="mean",
        template="plain",
        normed=True,
    )


def main() -> None:
    """Read the arguments, run the trajectory and write its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of checkpoints, such as step0,step500; by default all")
    parser.add_argument("--join", type=Path, nargs="+", help="results to put together; nothing is run")
    parser.add_argument("--recipe", default="lora")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--instruction", default="Represent this text for finding similar ones: ")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    result = join(arguments.join, arguments.out) if arguments.join else run(arguments)
    page = d2v.report(arguments.out)
    for name, gains in result.group_gains().items():
        sys.stdout.write(f"mean gain, {name} tasks: {gains}\n")
    sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
