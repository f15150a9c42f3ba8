"""Plot what a bridge says and finds with real, zeroed and shuffled vectors, from results/bridge.

Run: python experiments/bridge/draw.py [--results FILE] [--out docs/images/bridge.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from decoder2vec.report.figures import COLOURS, panels

ARMS = ("real", "zeroed", "shuffled")


def main() -> None:
    """Read the options and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/bridge/minilm.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/bridge.png"))
    arguments = parser.parse_args()
    record = json.loads(arguments.results.read_text("utf-8"))
    words, vectors = record["lm"]["control"]["scores"], record["description vectors"]
    described = {
        "ROUGE-L": words["ROUGE-L"],
        "F1 of words": words["token F1"],
        "cosine × 100": vectors["cosine"]["scores"],
        "nearest of 1,000": vectors["recall@1"]["scores"],
    }
    pairs = record["pairs"]
    found = {
        name: {arm: pairs[f"bridge, {arm} vectors"][name] for arm in ARMS}
        for name in ("recall@1", "recall@10", "reciprocal rank")
    }
    with panels(arguments.out, "Vectors of all-MiniLM-L6-v2 through a bridge", 1, 2, (12, 3.8)) as (_, axes):
        draw_bars(axes[0, 0], described, "described in words: how close to the text")
        draw_bars(axes[0, 1], found, "searched by smollm2-135m-general: 1,000 pairs")
        axes[0, 0].legend(loc="upper left")


def draw_bars(axis: Any, scores: dict[str, dict[str, dict[str, float]]], title: str) -> None:
    """A bar for each score and kind of vector, with 95 % intervals."""
    for number, arm in enumerate(ARMS):
        for place, by_arm in enumerate(scores.values()):
            score = by_arm[arm]
            error = [
                [max(0, score["value"] - score["low"])],
                [max(0, score["high"] - score["value"])],
            ]  # may round below 0
            axis.bar(
                place + 0.27 * (number - 1),
                score["value"],
                0.25,
                yerr=error,
                capsize=2,
                color=COLOURS[number],
                label=f"{arm} vectors" if place == 0 else None,
            )
    axis.set_xticks(range(len(scores)), labels=list(scores))
    axis.set(title=title, ylim=(-3, 102))


if __name__ == "__main__":
    main()
