"""Adapt every checkpoint of a pre-training and score it before and after: when does a decoder become a good encoder?

`python experiments/trajectory/adapt.py --checkpoints CKPT --data DATA --out OUT` trains LoRA on the NLI triplets at
every checkpoint with three seeds, all read by the mean of the last layer, and writes OUT/trajectory.json and a page.
Interrupted, the same command continues. `--limit 200 --steps 20 --seeds 0` with checkpoints of size `tiny` takes a few
minutes on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import decoder2vec as d2v

TASKS = "stsb,sickr,quora-mini,scifact,20newsgroups,banking77,emotion,mrpc,quora"


def main() -> None:
    """Read the arguments, run the trajectory and write its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
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
    training = {"steps": arguments.steps, "batch": arguments.batch, "rate": arguments.rate}
    result = d2v.Trajectory(arguments.checkpoints).run(
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
    page = d2v.report(arguments.out)
    for name, gains in result.group_gains().items():
        sys.stdout.write(f"mean gain, {name} tasks: {gains}\n")
    sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
