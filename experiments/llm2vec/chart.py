"""The pooling study from results/llm2vec/*.json: a table for people, and bars.

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
"""Readings of the untrained model that stand beside the study, as lines."""


def score(folder: Path, name: str) -> tuple[float, float] | None:
    """Mean and spread over seeds of the mean Spearman of all test files; None for what was not run.

    One seed alone has no spread, which is said by a spread of 0.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return None
    seeds = json.loads(file.read_text(encoding="utf-8"))["seeds"]
    values = [mean(scores["spearman"] for scores in seed["test"].values()) for seed in seeds]
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def shown(found: tuple[float, float] | None) -> str:
    """A cell of the table."""
    if not found:
        return ""
    return f"{found[0]:.1f}" + (f" ± {found[1]:.1f}" if found[1] else "")


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/llm2vec"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/llm2vec.png"))
    arguments = parser.parse_args()
    print("| | " + " | ".join(POOLINGS.values()) + " |\n|" + "---|" * (len(POOLINGS) + 1))
    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for row, (step, said) in enumerate(STEPS.items()):
        found = {pooling: score(arguments.results, f"{step}_{pooling}") for pooling in POOLINGS}
        cells = [shown(one) for one in found.values()]
        print(f"| {said} | " + " | ".join(cells) + " |")
        for place, one in enumerate(found.values()):
            if one:
                spread = one[1] or None
                axes.bar(row + 0.27 * (place - 1), one[0], 0.25, yerr=spread, color=f"C{place}", capsize=2)
    for prompt in PROMPTS:
        if found_beside := score(arguments.results, prompt):
            print(f"{prompt}, untrained: {shown(found_beside)}")
            axes.axhline(found_beside[0], color="black", linewidth=0.8, linestyle="--")
            axes.text(2.45, found_beside[0], f"{prompt}, untrained", fontsize=7, ha="right", va="bottom")
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
