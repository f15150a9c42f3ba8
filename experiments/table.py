"""Print test scores of plans as a Markdown table: mean ± standard deviation over seeds.

Run: python experiments/table.py [--metric spearman] [--results results/freeze] NAME ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

FILES = ("stsb-test", "sickr-test", "all files")


def cell(results: dict[str, Any], file: str, metric: str) -> str:
    """Return a score, or an empty cell if the file was not evaluated; "all files" needs all seven STS test sets."""
    tests = [seed["test"] for seed in results["seeds"]]
    if file == "all files" and len(tests[0]) == 7:
        values = [mean(scores[metric] for scores in test.values()) for test in tests]
    elif file in tests[0]:
        values = [test[file][metric] for test in tests]
    else:
        return ""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    """Read the results and print the table."""
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
