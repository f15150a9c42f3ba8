"""Evaluate the best untrained readings of a sweep on the seven STS test sets.

Run after `d2v sweep MODEL --data DIR/stsb-dev.tsv --out SWEEP`:
    python experiments/zero_shot/seven_sets.py MODEL SWEEP/sweep.json DIR OUT.json
For every template, pooling and head the layer is the best on STS-B dev. Heads are fitted on the sentences of STS-B dev,
as in the sweep. Nothing is selected on test files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from decoder2vec import Backbone, Encoder, Reading, Template
from decoder2vec.analysis.sweep import SweepRow, best_by
from decoder2vec.config import EncoderSpec
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.storage import versions
from decoder2vec.text.files import read_pairs

TESTS = ("stsb-test", "sts12-test", "sts13-test", "sts14-test", "sts15-test", "sts16-test", "sickr-test")


def main() -> None:
    """Evaluate the best row of every template, pooling and head; write one JSON file."""
    model, sweep_file, data, out = sys.argv[1], *map(Path, sys.argv[2:5])
    rows = [SweepRow(**row) for row in json.loads(sweep_file.read_text())["rows"] if row["attention"] == "causal"]
    best = [row for row in best_by(rows, "template", "pooling", "head") if row.pooling in ("lasttoken", "mean")]
    backbone = Backbone.load(model)
    dev = read_pairs(data / "stsb-dev.tsv")
    tests = [read_pairs(data / f"{name}.tsv") for name in TESTS]
    results = []
    for row in best:
        spec = EncoderSpec(model, (Reading(row.layer, row.pooling, row.normed),), Template.of(row.template).string)
        encoder = Encoder(backbone, spec)
        if row.head != "none":
            encoder = encoder.with_head(row.head, dev.texts())
        scores = {pairs.name: evaluate_sts(encoder, pairs) for pairs in tests}
        mean = round(sum(score["spearman"] for score in scores.values()) / len(scores), 2)
        results.append({**vars(row), "dev_spearman": row.spearman, "mean_of_seven": mean, "tests": scores})
        print(row.template, row.pooling, row.head, row.layer, row.spearman, scores["stsb-test"]["spearman"], mean)
    document = {"model": Path(model).stem, "command": " ".join(["python", *sys.argv]), "dtype": str(backbone.dtype)}
    out.write_text(json.dumps({**document, "versions": versions(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
