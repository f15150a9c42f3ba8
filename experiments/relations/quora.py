"""Write duplicate questions of Quora as records and labels, for `d2v relate --symmetric`.

    python experiments/relations/quora.py quora-dev.tsv.gz OUT_FOLDER [--pairs 400]

The file has the columns label, sentence1 and sentence2. Of the first pairs, every question becomes a record, and every
pair with the label 1 a relation.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from decoder2vec.text.files import read_rows


def main() -> None:
    """Write records.jsonl and labels.tsv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs_file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=400)
    args = parser.parse_args()
    ids: dict[str, int] = {}
    duplicates = []
    for _, row in islice(read_rows(args.pairs_file), args.pairs):
        left, right = (ids.setdefault(row[name], len(ids) + 1) for name in ("sentence1", "sentence2"))
        if row["label"] == "1" and left != right:
            duplicates.append((left, right))
    args.out.mkdir(parents=True, exist_ok=True)
    records = (json.dumps({"id": id, "text": text}, ensure_ascii=False) for text, id in ids.items())
    (args.out / "records.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")
    labels = ("head\ttail\tlabel", *(f"{left}\t{right}\tduplicate" for left, right in duplicates))
    (args.out / "labels.tsv").write_text("\n".join(labels) + "\n", encoding="utf-8")
    print(f"{len(ids)} records, {len(duplicates)} duplicates")


if __name__ == "__main__":
    main()
