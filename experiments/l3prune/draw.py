"""Print and plot quality against depth, encoding time and memory of pruned models, from results/l3prune/*.json.

Run: python experiments/l3prune/draw.py [--results results/l3prune] [--out docs/images/l3prune.png]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from decoder2vec.report.figures import COLOURS, GREY, legend_below, panels

NAMES = ("full", *(f"remove_{percent}" for percent in range(10, 100, 10)), "large", "small")
MARKERS = {
    "full": ("full model", "*", COLOURS[6]),
    "large": ("large", "D", COLOURS[2]),
    "small": ("small", "s", COLOURS[1]),
}
MARKER_OF_OTHERS = ("10 % steps", "o", COLOURS[0])


@dataclass(frozen=True)
class PrunedModel:
    """Quality and cost of one pruned and trained model."""

    name: str
    layers: int
    parameters: int
    quality: float
    spread: float
    training_seconds: float
    seconds: float
    peak_mb: float


def read_results(folder: Path) -> list[PrunedModel]:
    """Return the models whose results include the cost, the deepest first."""
    models = []
    for name in NAMES:
        file = folder / f"{name}.json"
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if "cost" not in results:
            continue
        scores = [mean(score["spearman"] for score in seed["test"].values()) for seed in results["seeds"]]
        spread = stdev(scores) if len(scores) > 1 else 0.0
        cost = results["cost"]
        training_seconds = mean(seed["seconds"] for seed in results["seeds"])
        sizes = cost["layers"], cost["parameters"]
        quality = mean(scores)
        models.append(PrunedModel(name, *sizes, quality, spread, training_seconds, cost["seconds"], cost["peak_mb"]))
    return sorted(models, key=lambda model: -model.layers)


def print_table(models: list[PrunedModel]) -> None:
    """Print a Markdown table that compares each model with the full one."""
    full = next((model for model in models if model.name == "full"), models[0])
    print("| model | layers | parameters | STS, 7 sets | against full | training s | encoding s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for model in models:
        share = model.parameters / full.parameters
        spread = f" ± {model.spread:.1f}" if model.spread else ""  # a single seed has none
        print(
            f"| `{model.name}` | {model.layers} | {model.parameters / 1e6:.1f}M ({share:.0%}) | "
            f"{model.quality:.1f}{spread} | {model.quality - full.quality:+.1f} | "
            f"{model.training_seconds:.0f} | {model.seconds:.2f} | {model.peak_mb:.0f} |"
        )


def plot(models: list[PrunedModel], file: Path) -> None:
    """Plot quality over depth, seconds and memory in three panels."""
    costs = (("layers", "layers kept"), ("seconds", "seconds to encode"), ("peak_mb", "peak memory while encoding, MB"))
    title = "Pruned, then trained: mean Spearman x 100 of the test sets"
    with panels(file, title, 1, 3, (10.5, 3.9), sharey=True) as (figure, grid):
        for axes, (cost, label) in zip(grid[0], costs, strict=True):
            line = sorted((getattr(model, cost), model.quality) for model in models)
            axes.plot(*zip(*line, strict=True), color=GREY, linewidth=0.8, zorder=1)
            in_legend = set()
            for model in models:
                name, marker, colour = MARKERS.get(model.name, MARKER_OF_OTHERS)
                axes.errorbar(
                    getattr(model, cost),
                    model.quality,
                    model.spread,
                    marker=marker,
                    color=colour,
                    markersize=9 if model.name in MARKERS else 4.5,
                    linestyle="none",
                    capsize=2,
                    label=None if name in in_legend else name,
                )
                in_legend.add(name)
            axes.set_xlabel(label)
            axes.set_xlim(0, 1.06 * max(getattr(model, cost) for model in models))
        grid[0][0].set_ylabel("Spearman x 100")
        legend_below(figure, grid[0][0])


def main() -> None:
    """Read the results, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/l3prune"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/l3prune.png"))
    arguments = parser.parse_args()
    models = read_results(arguments.results)
    if not models:
        raise SystemExit(f"{arguments.results} has no results with a cost; run experiments/l3prune/run.py first.")
    print_table(models)
    plot(models, arguments.out)


if __name__ == "__main__":
    main()
