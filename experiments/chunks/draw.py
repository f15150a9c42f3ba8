"""Print and plot nDCG@10 and tokens of whole documents, early and late chunks, from results/chunks/*.json.

Run: python experiments/chunks/draw.py [--results results/chunks] [--out docs/images/chunks.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from decoder2vec.report.figures import COLOURS, legend_below, panels

NAMES = {
    "general": "trained, bidirectional",
    "untrained-mean": "untrained, causal, mean",
    "untrained-prompteol": "untrained, causal, prompteol",
}
SETS = {"scifact": ("ndcg", "SciFact, abstracts by sentences"), "long": ("chunk_ndcg", "long documents, chunks")}
"""Set -> the metric that is shown, and the name of the set."""
WAYS = {"whole": COLOURS[6], "early": COLOURS[0], "late-512": COLOURS[1], "late-2048": COLOURS[4]}


class Row(NamedTuple):
    """One way to encode the documents of one set with one encoder."""

    encoder: str
    set: str
    way: str
    scores: dict[str, Any]
    gain: dict[str, Any]
    """Difference to early chunking by metric."""


def read_rows(folder: Path) -> list[Row]:
    """Return all results."""
    rows = []
    for name, encoder in NAMES.items():
        file = folder / f"{name}.json"
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for set_name in SETS:
            measured = results.get(set_name, {})
            gains = measured.get("late - early", {})
            rows += [Row(encoder, set_name, way, measured[way], gains.get(way, {})) for way in WAYS if way in measured]
    return rows


def print_table(rows: list[Row]) -> None:
    """Print a Markdown table."""
    print("| Encoder | Set | Way | nDCG@10, documents | nDCG@10, chunks | Late - early | Tokens read | Seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        metric = SETS[row.set][0]
        gain = row.gain.get(metric)
        change = f"{gain['value']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})" if gain else ""
        chunks = f"{row.scores['chunk_ndcg@10']:.1f}" if "chunk_ndcg@10" in row.scores else ""
        cells = (row.encoder, row.set, row.way, f"{row.scores['ndcg@10']:.1f}", chunks, change)
        print("| " + " | ".join((*cells, f"{row.scores['tokens']:,}", f"{row.scores['seconds']:.0f}")) + " |")


def draw(rows: list[Row], file: Path) -> None:
    """Plot nDCG@10 on the left and tokens read, relative to early chunking, on the right."""
    groups = list(dict.fromkeys((row.set, row.encoder) for row in rows))
    with panels(file, "Late against early chunking", 1, 2, (11, 4.2)) as (figure, axes):
        for place, group in enumerate(groups):
            members = [row for row in rows if (row.set, row.encoder) == group]
            early = next(row.scores["tokens"] for row in members if row.way == "early")
            for offset, row in enumerate(members):
                x = place + 0.2 * (offset - (len(members) - 1) / 2)
                score = row.scores.get(f"{SETS[row.set][0]}@10")
                label = row.way if place == 0 or row.way == "late-2048" else None
                if score is not None:
                    axes[0, 0].bar(x, score, 0.18, color=WAYS[row.way], label=label)
                axes[0, 1].bar(x, row.scores["tokens"] / early, 0.18, color=WAYS[row.way])
        for axis, title in zip(axes[0], ("nDCG@10", "tokens read / tokens of early chunking"), strict=True):
            labels = [f"{SETS[set_name][1]}\n{encoder}" for set_name, encoder in groups]
            axis.set_xticks(range(len(groups)), labels, rotation=20, ha="right", fontsize=7)
            axis.set_title(title)
        legend_below(figure, axes[0, 0])


def main() -> None:
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/chunks"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/chunks.png"))
    args = parser.parse_args()
    rows = read_rows(args.results)
    print_table(rows)
    draw(rows, args.out)


if __name__ == "__main__":
    main()
