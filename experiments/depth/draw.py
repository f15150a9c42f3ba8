"""Plot what the vectors of sentences know before and after unshuffling, from results/depth.

Run: python experiments/depth/draw.py [--results FOLDER] [--out docs/images/unshuffle.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from decoder2vec.report.figures import COLOURS, GREY, panels

ROWS = {
    ("mntp", "together"): "masked tokens, late chunks",
    ("lm", "together"): "labels generated, late chunks",
    ("lm", "tokens"): "labels generated, sentence tokens",
    ("pointer", "together"): "pointer, late chunks",
    ("pointer", "tokens"): "pointer, sentence tokens",
}
SOURCES = ("wikipedia", "abstracts", "textbooks")
PROBES = {"position": "place of a sentence (chance 20 %)", "coherence": "is a sentence foreign? (chance 50 %)"}


def main() -> None:
    """Read the options and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/depth"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/unshuffle.png"))
    arguments = parser.parse_args()
    summary = json.loads((arguments.results / "summary.json").read_text("utf-8"))
    with panels(arguments.out, "Vectors of sentences after 100 seconds of training", 1, 2, (12, 3.8)) as (_, axes):
        for axis, (probe, title) in zip(axes[0], PROBES.items(), strict=True):
            draw_probe(axis, summary, probe, title)
        axes[0, 1].set_yticklabels([])
        axes[0, 0].legend(loc="lower right")


def draw_probe(axis: Any, summary: dict[str, Any], probe: str, title: str) -> None:
    """Accuracy above the untrained model's, with 95 % intervals over texts."""
    for number, source in enumerate(SOURCES):
        for place, (arm, reading) in enumerate(ROWS):
            gain = summary[arm]["probes"][f"{probe}/{source}"][reading]
            error = [[gain["value"] - gain["low"]], [gain["high"] - gain["value"]]]
            axis.errorbar(
                gain["value"],
                place + 0.2 * (1 - number),
                xerr=error,
                fmt="o",
                color=COLOURS[number],
                capsize=2,
                label=source if place == 0 else None,
            )
    axis.axvline(0, color=GREY, linestyle="--")
    axis.set_yticks(range(len(ROWS)), labels=list(ROWS.values()))
    axis.set(title=title, xlabel="accuracy above the untrained model's late chunks, points")


if __name__ == "__main__":
    main()
