"""Write training data: records of the train families, and scored pairs of the dev families for model selection.

    python experiments/matching/records.py experiments/matching/records

writes train.jsonl, one record {"label", "description", "pos": [...], "neg": [...]} per line, and dev.jsonl, one
{"sentence1", "sentence2", "score"} per line. `d2v train --recipe lora --data FOLDER/train.jsonl --dev FOLDER/dev.jsonl`
trains on the first file and selects on the second.
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
    for name, rows in (("train", labelled.training_records("train")), ("dev", labelled.scored_pairs("dev"))):
        print(f"{write_jsonl(folder / f'{name}.jsonl', rows)} rows in {folder / name}.jsonl")


def write_jsonl(file: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as lines of JSON and return their number."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    main()
