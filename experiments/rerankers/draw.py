"""Plot how deep to rerank SciFact, and what matters in training, from results/rerankers.

Run: python experiments/rerankers/draw.py [--results FOLDER] [--out docs/images/reranking.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from decoder2vec.report.figures import COLOURS, GREY, panels

_LABELS = {"main": "200 s, 7 negatives", "7 negatives": "45 s, 7 negatives", "1 negative": "45 s, 1 negative"}
_COMPARED = {
    "7 negatives": "7 negatives",
    "seed 1": "7 negatives, other seed",
    "no teacher": "without teachers",
    "3 negatives": "3 negatives",
    "1 negative": "1 negative",
    "15 negatives": "15 negatives",
    "from the model itself": "not from the encoder",
    "all weights": "all weights",
    "query first": "query first",
    "likelihood:smollm2-135m": "likelihood, no training",
    "cosine:smollm2-135m-general": "encoder",
    "cosine:all-minilm-l6-v2": "all-MiniLM-L6-v2",
}


def main() -> None:
    """Read the options and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/rerankers"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/reranking.png"))
    arguments = parser.parse_args()
    by_time, study = (
        json.loads((arguments.results / f"{name}.json").read_text("utf-8")) for name in ("scifact", "study")
    )
    with panels(arguments.out, "Reranking BM25 on SciFact", 1, 2, (12, 4.2)) as (_, axes):
        draw_depths(axes[0, 0], by_time["rerankers"], study["bm25"]["scifact"]["0"]["all"])
        draw_variants(axes[0, 1], study["rerankers"])


def draw_depths(axis: Any, rerankers: dict[str, Any], bm25: float) -> None:
    """nDCG@10 by the number of documents that are reranked."""
    for (name, label), colour in zip(_LABELS.items(), COLOURS, strict=False):
        scores = {int(depth): score["all"] for depth, score in rerankers[name]["scifact"].items() if depth.isdigit()}
        axis.plot(list(scores), list(scores.values()), "o-", color=colour, label=label)
    axis.axhline(bm25, color=GREY, linestyle="--", label="BM25")
    axis.set(xscale="log", xlabel="documents reranked", ylabel="nDCG@10, 300 queries")
    axis.set_xticks([10, 20, 50, 100, 200], labels=["10", "20", "50", "100", "200"])
    axis.minorticks_off()
    axis.legend()


def draw_variants(axis: Any, rerankers: dict[str, Any]) -> None:
    """Gain over BM25 at a depth of 100, with 95 % intervals over queries."""
    for place, name in enumerate(_COMPARED):
        mean, low, high = rerankers[name]["scifact"]["against"]["BM25"]
        colour = COLOURS[0] if rerankers[name]["training"] else COLOURS[1]
        axis.errorbar(mean, -place, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
    axis.axvline(0, color=GREY, linestyle="--")
    axis.set_yticks([-place for place in range(len(_COMPARED))], labels=list(_COMPARED.values()))
    axis.set(xlabel="nDCG@10 above BM25, 100 documents, 300 steps")


if __name__ == "__main__":
    main()
