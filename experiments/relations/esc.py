"""Write the Event StoryLine Corpus as files for `d2v relate`, split by topic as in `evaluate.py`.

    python experiments/relations/esc.py esc.jsonl.gz OUT_FOLDER

The training topics, dev included, and the test topics become `train` and `test`, each with mentions and labels. So a
reranker as the classifier is measured by two commands; the first one needs a GPU:

    d2v relate train.jsonl --labels train-labels.tsv --k 5 --classifier smollm2-135m --save matcher/
    d2v relate test.jsonl --labels test-labels.tsv --matcher matcher/ --out test.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from evaluate import TEST_TOPICS, read_corpus


def main() -> None:
    """Write mentions and labels of both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    mentions, relations, topics = read_corpus(args.corpus)
    is_test = {mention.id: topic in TEST_TOPICS for mention, topic in zip(mentions, topics, strict=True)}
    for name, wanted in (("train", False), ("test", True)):
        rows = [
            {"id": each.id, "document": each.document, "text": each.text, "start": each.span[0], "end": each.span[1]}
            for each in mentions
            if each.span and is_test[each.id] == wanted
        ]
        known = [each for each in relations if is_test[each.head] == wanted]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        labels = ("head\ttail\tlabel", *(f"{each.head}\t{each.tail}\t{each.label}" for each in known))
        (args.out / f"{name}-labels.tsv").write_text("\n".join(labels) + "\n", encoding="utf-8")
        print(f"{name}: {len(rows):,} mentions, {len(known):,} relations")


if __name__ == "__main__":
    main()
