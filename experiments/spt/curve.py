"""Plot quality against the number of soft tokens, from results/spt/soft_prompt_*.json.

Run: python experiments/spt/curve.py [--results results/spt] [--out docs/images/soft_tokens.png]
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read_scores(folder: Path) -> list[tuple[int, float, float]]:
    """Return (tokens, mean, standard deviation) over seeds of the mean Spearman of all test files."""
    scores_by_tokens = []
    for file in folder.glob("soft_prompt_*.json"):
        if match := re.fullmatch(r"soft_prompt_(\d+)", file.stem):
            seeds = json.loads(file.read_text(encoding="utf-8"))["seeds"]
            values = [mean(scores["spearman"] for scores in seed["test"].values()) for seed in seeds]
            scores_by_tokens.append((int(match[1]), mean(values), stdev(values) if len(values) > 1 else 0.0))
    return sorted(scores_by_tokens)


def main() -> None:
    """Read the results and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/spt"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/soft_tokens.png"))
    arguments = parser.parse_args()
    tokens, scores, spreads = zip(*read_scores(arguments.results), strict=True)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.errorbar(tokens, scores, spreads, marker="o", capsize=3)
    axes.set(xlabel="soft tokens", ylabel="mean Spearman x 100 of 7 STS sets", xticks=tokens)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments.out, dpi=150)


if __name__ == "__main__":
    main()
