"""Which sources should feed STS-B, Banking77 and GAP? Every layer of several encoders of one model, alone and combined.

Data are in the layout of `stsb-train.tsv`, `banking77-train.tsv.gz` and `gap-development.tsv.gz`, in subfolders sts/,
classification/ and coreference/. Sources are given as for `d2v choose`, the base first:

    python experiments/choose/study.py DATA OUT base=smollm2-135m general=smollm2-135m-general --limit 600

With --against FOLDER nothing is trained: LogME is computed from the training texts alone, and compared with the
validation scores in FOLDER/TASK.json, a choose.json of a trained run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import decoder2vec as d2v

FILES = {
    "stsb": ("sts/stsb-train.tsv", "sts/stsb-dev.tsv", "sts/stsb-test.tsv"),
    "banking77": ("classification/banking77-train.tsv.gz", None, "classification/banking77-test.tsv.gz"),
    "gap": tuple(f"coreference/gap-{split}.tsv.gz" for split in ("development", "validation", "test")),
}
"""Training, validation and test file of each task; Banking77 has no validation file: a fifth of the training texts."""


def main() -> None:
    """Run the study and write OUT/TASK/choose.json and choose.png."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--tasks", default=",".join(FILES))
    parser.add_argument("--limit", type=int, help="texts of each file, evenly spaced; by default all")
    parser.add_argument("--layers", default="", help="comma-separated; by default all")
    parser.add_argument("--against", type=Path, help="folder with results of a trained run to compare LogME with")
    arguments = parser.parse_args()
    for task in arguments.tasks.split(","):
        files = [None if name is None else arguments.data / name for name in FILES[task]]
        if arguments.against:
            files = [files[0]] * 3  # no other texts are needed
        result = d2v.choose(
            arguments.sources,
            files[0],
            valid=files[1],
            test=files[2],
            limit=arguments.limit,
            layers=[int(layer) for layer in arguments.layers.split(",") if layer],
            quick=arguments.against is not None,
            out=arguments.out / task,
            command=shlex.join(["python", "experiments/choose/study.py", "DATA", "OUT", *sys.argv[3:]]),
        )
        agreement = agree(result, arguments.against / f"{task}.json") if arguments.against else result.agreement()
        print(f"{task}: {result.verdict()} LogME agrees by {agreement:.2f}; {result.seconds:.0f} s", flush=True)


def agree(result: d2v.Choice, trained: Path) -> float:
    """Spearman correlation of LogME with the validation scores of the same layers in a trained run."""
    rows = json.loads(trained.read_text(encoding="utf-8"))["layers"]
    valid = {(row["source"], row["layer"], row["pooling"]): np.mean(row["valid"]) for row in rows}
    keys = [(row.source, row.reading.layer, row.reading.pooling) for row in result.layers]
    return float(spearmanr([row.logme for row in result.layers], [valid[key] for key in keys]).statistic)


if __name__ == "__main__":
    main()
