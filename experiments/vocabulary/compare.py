"""Compare models with a pruned vocabulary with the whole model: size, vectors of held-out texts, and STS.

Run: python experiments/vocabulary/compare.py gemma3-270m PRUNED... --texts held_out.txt --pairs sts/stsb-dev.tsv
     --out results/vocabulary/gemma3-270m.json
PRUNED are folders that `d2v prune gemma3-270m --vocabulary texts.txt [--vocabulary-size N] --out PRUNED` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import decoder2vec as d2v
from decoder2vec.storage import write_json


def vectors_and_score(name: str, texts: list[str], pairs: d2v.ScoredPairs) -> tuple[np.ndarray, float]:
    """Vectors of the texts, and Spearman's correlation on the pairs, by the mean of the last layer."""
    from scipy.stats import spearmanr

    settings = {"pooling": "mean", "template": "plain", "normalize": True, "device": "cpu", "dtype": "float32"}
    encoder = d2v.Encoder.from_pretrained(name, **settings)
    left, right = (np.asarray(encoder.encode(side)) for side in (pairs.left, pairs.right))
    score = 100 * float(spearmanr((left * right).sum(axis=1), pairs.scores).statistic)
    alone = d2v.Encoder.from_pretrained(name, **settings, exact=True)  # else vectors depend on their batch, by rounding
    return np.asarray(alone.encode(texts)), score


def main() -> None:
    """Encode with every model and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pruned", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="held-out texts, one per line")
    parser.add_argument("--limit", type=int, default=500, help="how many of them are encoded")
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--limit-pairs", type=int, default=None)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.limit]
    pairs = d2v.read_pairs(args.pairs, limit=args.limit_pairs)
    whole, score = vectors_and_score(args.model, texts, pairs)
    rows = [{"vocabulary": "whole", "spearman": round(score, 2)}]
    for folder in args.pruned:
        vectors, score = vectors_and_score(str(folder), texts, pairs)
        cosines = (vectors * whole).sum(axis=1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(whole, axis=1)
        same = (vectors == whole).all(axis=1)
        changed = cosines[~same]
        rows.append(
            {
                **json.loads((folder / "pruning.json").read_text(encoding="utf-8"))["vocabulary"],
                "encoded": len(texts),
                "bit_equal": int(same.sum()),
                "mean_cosine_of_others": round(float(changed.mean()), 4) if len(changed) else None,
                "lowest_cosine": round(float(cosines.min()), 4),
                "spearman": round(score, 2),
                "megabytes": round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**20),
            }
        )
        print(rows[-1], flush=True)
    command = " ".join(["python", "experiments/vocabulary/compare.py", *map(_neutral, sys.argv[1:])])
    write_json(args.out, {"command": command, "model": args.model, "pairs": args.pairs.name, "rows": rows})


def _neutral(argument: str) -> str:
    """A path by its last name."""
    return Path(argument).name if argument.startswith("/") else argument


if __name__ == "__main__":
    main()
