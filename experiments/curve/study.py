"""Which recipe at which size: learning curves on STS-B, and the two shapes that the paper of the adapters found.

    python experiments/curve/study.py DATA OUT [--backbone smollm2-135m] [--sizes 50,200,1000,all] [--seeds 0,1,2]
        [--recipes freeze,soft_prompt,lora,bottleneck,conv,full] [--set key=value ...] [--device cuda] [--limit 200]
        [--collect]

DATA is the folder that holds sts/stsb-*.tsv. The curve goes to OUT; an interrupted run is started again with the same
command. OUT/shapes.json then says whether the gap of bottleneck adapters to full fine-tuning closes with data, and
whether convolutions are better than bottlenecks at the smallest size (Samin et al., on speech recognition).

With --collect nothing is trained: the runs in OUT/curve/runs that have ended, such as those of several processes with
one recipe each, are written to OUT/collected.json and drawn. Points with one seed only are left out.

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
from decoder2vec.errors import InputError
from decoder2vec.maths.learning_curve import half_interval
from decoder2vec.report.curve_figures import draw_learning_curve
from decoder2vec.storage import parse_json, write_json
from decoder2vec.training.curve import RECIPES, CurvePoint, parse_sizes


def differences(curve: d2v.LearningCurve, better: str, other: str) -> list[dict[str, Any]]:
    """One recipe's score minus another's, the mean over seeds that both have, with half of its 95 % interval.

    Sizes at which one of them has not ended are left out.
    """
    rows = []
    for size in curve.sizes:
        by_seed = {
            point.recipe: {run["seed"]: run[curve.shown] for run in point.runs if run[curve.shown] is not None}
            for point in curve.at(size)
        }
        first, second = by_seed.get(better, {}), by_seed.get(other, {})
        if values := [first[seed] - second[seed] for seed in first if seed in second]:
            mean = round(sum(values) / len(values), 2)
            rows.append({"size": size, "difference": mean, "half_interval": half_interval(values)})
    return rows


def shapes(curve: d2v.LearningCurve) -> dict[str, Any]:
    """The two comparisons of the paper, where their recipes were trained."""
    found: dict[str, Any] = {}
    if gap := differences(curve, "full", "bottleneck"):
        found["full minus bottleneck"] = gap
        found["the gap closes with data"] = gap[-1]["difference"] < gap[0]["difference"]
    if lead := differences(curve, "conv", "bottleneck"):
        found["conv minus bottleneck"] = lead
        found["convolutions lead at the smallest size"] = lead[0]["difference"] > 0
    return found


def collect(runs: Path, command: str) -> d2v.LearningCurve:
    """The points whose runs have ended, with a document like `curve.json`."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for file in sorted(runs.glob("*.json")):
        recipe, size, _ = file.stem.rsplit("-", 2)
        groups.setdefault((recipe, int(size)), []).append(parse_json(file.read_bytes()))
    points = []
    for (recipe, size), documents in groups.items():
        ended = sorted((run for run in documents if run["test"] is not None), key=lambda run: run["seed"])
        tried = [{"settings": run["settings"], "dev": run["dev"]} for run in documents if run["test"] is None]
        if len(ended) > 1:
            points.append(CurvePoint(recipe, size, ended[0]["settings"], tried, ended))
    if not points:
        raise InputError(f"{runs} has no recipe and size with two or more seeds that ended; train first.")
    order = {recipe: position for position, recipe in enumerate(RECIPES)}
    points.sort(key=lambda point: (order[point.recipe], point.size))
    recipes = list(dict.fromkeys(point.recipe for point in points))
    untrained = next((point.runs[0]["untrained"] for point in points if point.recipe != "freeze"), {})
    document = {"command": command, "metric": "spearman", "noun": "pairs", "shown": "test", "recipes": recipes}
    document |= {"untrained": untrained, "points": [point.to_json() for point in points]}
    return d2v.LearningCurve(points, "pairs", "test", document)


def train(arguments: argparse.Namespace, command: str) -> d2v.LearningCurve:
    """Train every recipe at every size, or go on where that was interrupted."""
    folder = arguments.data / "sts"
    files = {split: d2v.read_pairs(folder / f"stsb-{split}.tsv") for split in ("train", "dev", "test")}
    dev, test = (files[split].limit(arguments.limit) for split in ("dev", "test"))
    return d2v.learning_curve(
        d2v.TrainingData(files["train"], (dev,), (test,), scale=(0.0, 5.0)),
        arguments.backbone,
        arguments.out / "curve",
        sizes=parse_sizes(arguments.sizes),
        recipes=arguments.recipes.split(","),
        seeds=[int(seed) for seed in arguments.seeds.split(",")],
        settings=arguments.set,
        device=arguments.device,
        notify=lambda message: print(message, flush=True),
        command=command,
    )


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
    parser.add_argument("--collect", action="store_true", help="train nothing: write and draw what has ended")
    arguments = parser.parse_args()
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    if arguments.collect:
        curve = collect(arguments.out / "curve" / "runs", command)
        write_json(arguments.out / "collected.json", curve.document)
        title = "SmolLM2-135M on STS-B: test score by number of training pairs"
        draw_learning_curve({**curve.document, "sentence": title}, arguments.out / "collected.png")
    else:
        curve = train(arguments, command)
    print(curve.sentence(), *curve.forecast_lines(), sep="\n")
    write_json(arguments.out / "shapes.json", {"command": command, **shapes(curve)})


if __name__ == "__main__":
    main()
