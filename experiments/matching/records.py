"""Training records of the train and dev families: {"label", "description", "pos": [...], "neg": [...]} a line.

    python experiments/matching/records.py FOLDER

writes FOLDER/train.jsonl and FOLDER/dev.jsonl; `d2v train --recipe lora --data FOLDER/train.jsonl` learns from them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from decoder2vec.search.matching.labelled_set import read_labelled_set


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    labelled = read_labelled_set()
    for split in ("train", "dev"):
        lines = [json.dumps(record, ensure_ascii=False) for record in labelled.records(split)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{len(lines)} records in {folder / split}.jsonl")


if __name__ == "__main__":
    main()
