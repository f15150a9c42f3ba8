"""Which recipe at which size: learning curves on STS-B, and the two shapes that the paper of the adapters found.

    python experiments/curve/study.py DATA OUT [--backbone smollm2-135m] [--sizes 50,200,1000,all] [--seeds 0,1,2]
        [--recipes freeze,soft_prompt,lora,bottleneck,conv,full] [--set key=value ...] [--device cuda] [--limit 200]

DATA is the folder that holds sts/stsb-*.tsv. The curve goes to OUT; an interrupted run is started again with the same
command. OUT/shapes.json then says whether the gap of bottleneck adapters to full fine-tuning closes with data, and
whether convolutions are better than bottlenecks at the smallest size (Samin et al., on speech recognition).

A CPU does `--backbone tiny-llama --limit 200` in minutes, which tests the script and says nothing about real models.
The rest is for a GPU: the script needs no command line of the package, only torch, transformers, scipy and matplotlib.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import decoder2vec as d2v
from decoder2vec.maths.learning_curve import half_interval
from decoder2vec.storage import write_json
from decoder2vec.training.curve import RECIPES, parse_sizes


def differences(curve: d2v.LearningCurve, better: str, other: str) -> list[dict[str, Any]]:
    """By size, the mean over seeds of one recipe's score minus another's, with half of its 95 % interval."""
    rows = []
    for size in curve.sizes:
        at_size = {point.recipe: point.scores(curve.shown) for point in curve.at(size)}
        values = [a - b for a, b in zip(at_size[better], at_size[other], strict=True)]
        mean = round(sum(values) / len(values), 2) if values else None
        rows.append({"size": size, "difference": mean, "half_interval": half_interval(values)})
    return rows


def shapes(curve: d2v.LearningCurve) -> dict[str, Any]:
    """The two comparisons of the paper, where their recipes were trained."""
    found: dict[str, Any] = {}
    if {"full", "bottleneck"} <= set(curve.recipes):
        gap = differences(curve, "full", "bottleneck")
        found["full minus bottleneck"] = gap
        found["the gap closes with data"] = gap[-1]["difference"] < gap[0]["difference"]
    if {"conv", "bottleneck"} <= set(curve.recipes):
        lead = differences(curve, "conv", "bottleneck")
        found["conv minus bottleneck"] = lead
        found["convolutions lead at the smallest size"] = lead[0]["difference"] > 0
    return found


def main() -> None:
    """Train, print and write the curve and the shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--sizes", default="50,200,1000,all")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device")
    parser.add_argument("--limit", type=int, help="score at most this many dev and test pairs")
    arguments = parser.parse_args()
    folder = arguments.data / "sts"
    files = {split: d2v.read_pairs(folder / f"stsb-{split}.tsv") for split in ("train", "dev", "test")}
    dev, test = (files[split].limit(arguments.limit) for split in ("dev", "test"))
    curve = d2v.learning_curve(
        d2v.TrainingData(files["train"], (dev,), (test,), scale=(0.0, 5.0)),
        arguments.backbone,
        arguments.out / "curve",
        sizes=parse_sizes(arguments.sizes),
        recipes=arguments.recipes.split(","),
        seeds=[int(seed) for seed in arguments.seeds.split(",")],
        settings=arguments.set,
        device=arguments.device,
        notify=lambda message: print(message, flush=True),
        command=shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
    )
    print(curve.sentence(), *curve.forecast_lines(), sep="\n")
    write_json(arguments.out / "shapes.json", {"command": curve.document["command"], **shapes(curve)})


if __name__ == "__main__":
    main()
