"""What to train on: records of the train families, and scored pairs of the dev families to choose on.

    python experiments/matching/records.py experiments/matching/records

writes train.jsonl, {"label", "description", "pos": [...], "neg": [...]} a line, and dev.jsonl, a line {"sentence1",
"sentence2", "score"}. `d2v train --recipe lora --data FOLDER/train.jsonl` learns from the one and finds the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decoder2vec.matching.evaluation import read_labelled_set


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    labelled = read_labelled_set()
    for name, rows in (("train", labelled.records("train")), ("dev", labelled.scored_pairs("dev"))):
        print(f"{write(folder / f'{name}.jsonl', rows)} rows in {folder / name}.jsonl")


def write(file: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Rows as lines of JSON; how many."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    main()
