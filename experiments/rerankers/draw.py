"""Plot nDCG@10 on SciFact against the number of documents that are reranked, from results/rerankers/scifact.json.

Run: python experiments/rerankers/draw.py [--results FILE] [--out docs/images/reranking.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from decoder2vec.report.figures import COLOURS, GREY, panels

_BM25 = 68.63
_LABELS = {"main": "200 s, 7 negatives", "7 negatives": "45 s, 7 negatives", "1 negative": "45 s, 1 negative"}


def main() -> None:
    """Read the options and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/rerankers/scifact.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/reranking.png"))
    arguments = parser.parse_args()
    rerankers = json.loads(arguments.results.read_text(encoding="utf-8"))["rerankers"]
    with panels(arguments.out, "Reranking BM25 on SciFact", 1, 1, (6, 4)) as (_, axes):
        axis = np.ravel(axes)[0]
        for (name, label), colour in zip(_LABELS.items(), COLOURS, strict=False):
            by_depth = {
                int(depth): score["all"] for depth, score in rerankers[name]["scifact"].items() if depth.isdigit()
            }
            axis.plot(list(by_depth), list(by_depth.values()), "o-", color=colour, label=label)
        axis.axhline(_BM25, color=GREY, linestyle="--", label="BM25")
        axis.set(xscale="log", xlabel="documents reranked", ylabel="nDCG@10, 300 queries")
        axis.set_xticks([10, 20, 50, 100, 200], labels=["10", "20", "50", "100", "200"])
        axis.minorticks_off()
        axis.legend()


if __name__ == "__main__":
    main()
