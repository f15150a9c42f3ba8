"""The results of some plans as a Markdown table: mean ± standard deviation over seeds, in points, on test.

Run: python experiments/freeze/table.py [--metric spearman] [--results results/freeze] NAME ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FILES = ("stsb-test", "sickr-test", "all files")


def cell(results: dict[str, Any], file: str, metric: str) -> str:
    """One score, or nothing where the plan was not scored on the file; a mean over fewer than seven says nothing."""
    scores = results["mean"]["test"].get(file, {})
    if metric not in scores or (file == "all files" and len(results["mean"]["test"]) < 8):
        return ""
    return f"{scores[metric]:.1f} ± {results['sd']['test'][file][metric]:.1f}"


def main() -> None:
    """Read, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--metric", default="spearman")
    parser.add_argument("--results", type=Path, default=Path("results/freeze"))
    arguments = parser.parse_args()
    print("| plan | " + " | ".join(FILES) + " |\n|" + "---|" * (len(FILES) + 1))
    for name in arguments.names:
        results = json.loads((arguments.results / f"{name}.json").read_text(encoding="utf-8"))
        print(f"| `{name}` | " + " | ".join(cell(results, file, arguments.metric) for file in FILES) + " |")


if __name__ == "__main__":
    main()
