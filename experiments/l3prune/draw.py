"""Quality against depth, seconds and memory from results/l3prune/*.json: a table for people, and a figure.

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
SHOWN = {
    "full": ("whole model", "*", COLOURS[6]),
    "large": ("large", "D", COLOURS[2]),
    "small": ("small", "s", COLOURS[1]),
}
EVERY_TENTH = ("every tenth", "o", COLOURS[0])


@dataclass(frozen=True)
class Point:
    """One cut, trained."""

    name: str
    layers: int
    parameters: int
    quality: float
    spread: float
    training_seconds: float
    seconds: float
    peak_mb: float


def read(folder: Path) -> list[Point]:
    """Those that were run, from the deepest to the shallowest."""
    points = []
    for name in NAMES:
        file = folder / f"{name}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if "cost" not in found:
            continue
        scores = [mean(score["spearman"] for score in seed["test"].values()) for seed in found["seeds"]]
        spread = stdev(scores) if len(scores) > 1 else 0.0
        cost = found["cost"]
        trained = mean(seed["seconds"] for seed in found["seeds"])
        sizes = cost["layers"], cost["parameters"]
        points.append(Point(name, *sizes, mean(scores), spread, trained, cost["seconds"], cost["peak_mb"]))
    return sorted(points, key=lambda point: -point.layers)


def table(points: list[Point]) -> None:
    """Print all of them, each beside the whole model."""
    whole = next((point for point in points if point.name == "full"), points[0])
    print("| cut | layers | parameters | STS, 7 sets | against the whole | training s | encoding s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for point in points:
        share = point.parameters / whole.parameters
        spread = f" ± {point.spread:.1f}" if point.spread else ""  # one seed has none
        print(
            f"| `{point.name}` | {point.layers} | {point.parameters / 1e6:.1f}M ({share:.0%}) | "
            f"{point.quality:.1f}{spread} | {point.quality - whole.quality:+.1f} | "
            f"{point.training_seconds:.0f} | {point.seconds:.2f} | {point.peak_mb:.0f} |"
        )


def draw(points: list[Point], file: Path) -> None:
    """Three panels with the same points over depth, seconds and memory."""
    sides = (("layers", "layers kept"), ("seconds", "seconds to encode"), ("peak_mb", "peak memory while encoding, MB"))
    title = "What a model that was cut and then trained is worth: mean Spearman x 100 of the test sets"
    with panels(file, title, 1, 3, (10.5, 3.9), sharey=True) as (figure, grid):
        for axes, (field, label) in zip(grid[0], sides, strict=True):
            line = sorted((getattr(point, field), point.quality) for point in points)
            axes.plot(*zip(*line, strict=True), color=GREY, linewidth=0.8, zorder=1)
            seen = set()
            for point in points:
                said, marker, colour = SHOWN.get(point.name, EVERY_TENTH)
                axes.errorbar(
                    getattr(point, field),
                    point.quality,
                    point.spread,
                    marker=marker,
                    color=colour,
                    markersize=9 if point.name in SHOWN else 4.5,
                    linestyle="none",
                    capsize=2,
                    label=None if said in seen else said,
                )
                seen.add(said)
            axes.set_xlabel(label)
            axes.set_xlim(0, 1.06 * max(getattr(point, field) for point in points))
        grid[0][0].set_ylabel("Spearman x 100")
        legend_below(figure, grid[0][0])


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/l3prune"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/l3prune.png"))
    arguments = parser.parse_args()
    points = read(arguments.results)
    if not points:
        raise SystemExit(f"{arguments.results} holds no results with their cost; run experiments/l3prune/run.py first.")
    table(points)
    draw(points, arguments.out)


if __name__ == "__main__":
    main()
