"""Print and plot the LLM2Vec study by training steps and pooling, from results/llm2vec/*.json.

Run: python experiments/llm2vec/chart.py [--results results/llm2vec] [--out docs/images/llm2vec.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STEPS = {
    "uni": "causal",
    "bi": "bidirectional",
    "bi_mntp": "+ MNTP",
    "uni_simcse": "causal + SimCSE",
    "bi_simcse": "bidirectional + SimCSE",
    "bi_mntp_simcse": "+ MNTP + SimCSE",
}
POOLINGS = {"eos": "last token", "mean": "mean", "weightedmean": "weighted mean"}
PROMPTS = ("echo", "prompteol")
"""Prompts of the untrained model, plotted as horizontal lines for comparison."""


def mean_and_spread(folder: Path, name: str) -> tuple[float, float] | None:
    """Return mean and standard deviation over seeds of the mean Spearman of all test files; None if not run.

    The standard deviation of a single seed is given as 0.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return None
    seeds = json.loads(file.read_text(encoding="utf-8"))["seeds"]
    values = [mean(scores["spearman"] for scores in seed["test"].values()) for seed in seeds]
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def cell(score: tuple[float, float] | None) -> str:
    """Return a cell of the table."""
    if not score:
        return ""
    return f"{score[0]:.1f}" + (f" ± {score[1]:.1f}" if score[1] else "")


def main() -> None:
    """Read the results, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/llm2vec"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/llm2vec.png"))
    arguments = parser.parse_args()
    print("| | " + " | ".join(POOLINGS.values()) + " |\n|" + "---|" * (len(POOLINGS) + 1))
    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for group, (step, title) in enumerate(STEPS.items()):
        scores = [mean_and_spread(arguments.results, f"{step}_{pooling}") for pooling in POOLINGS]
        print(f"| {title} | " + " | ".join(map(cell, scores)) + " |")
        for bar, score in enumerate(scores):
            if score:
                spread = score[1] or None
                axes.bar(group + 0.27 * (bar - 1), score[0], 0.25, yerr=spread, color=f"C{bar}", capsize=2)
    for prompt in PROMPTS:
        if score := mean_and_spread(arguments.results, prompt):
            print(f"{prompt}, untrained: {cell(score)}")
            axes.axhline(score[0], color="black", linewidth=0.8, linestyle="--")
            axes.text(2.45, score[0], f"{prompt}, untrained", fontsize=7, ha="right", va="bottom")
    axes.set(ylabel="mean Spearman x 100 of 7 STS sets", xticks=range(len(STEPS)))
    axes.set_xticklabels(STEPS.values(), fontsize=8, rotation=12)
    axes.legend(
        handles=[plt.Rectangle((0, 0), 1, 1, color=f"C{n}", label=p) for n, p in enumerate(POOLINGS.values())],
        framealpha=1,
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments.out, dpi=150)


if __name__ == "__main__":
    main()
