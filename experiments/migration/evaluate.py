"""Measure what maps between spaces keep of the new encoder's search.

    python experiments/migration/evaluate.py DATA OUT.json OLD:NEW [OLD:NEW ...] [--documents 12000]

DATA is the folder that holds retrieval/quora-mini; OLD and NEW are encoders of `texts.py`. For each pair the documents
are indexed with the old encoder, `d2v.migrate` measures every kind of map from 5,000 texts and moves the index by the
best, and both are compared with the new encoder's own vectors among all documents. The test queries (sha1(id) mod 10 >=
3) are scored; no judged document is among those that a map is learned from.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from texts import DOCUMENTS, Collection, Vectors, read_quora

import decoder2vec as d2v
from decoder2vec.evaluation.tasks.retrieval import is_dev_query
from decoder2vec.maths.bootstrap import mean_scorer, resample
from decoder2vec.maths.space_map import MAPS
from decoder2vec.storage import write_json

SAMPLE = 5000
MODES = ("dense", "hybrid")


class CachedEncoder:
    """An encoder whose vectors of the collection are computed once."""

    def __init__(self, name: str) -> None:
        self._vectors = Vectors(name)
        self.dim, self.fingerprint = self._vectors.encoder.dim, self._vectors.encoder.fingerprint

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dim] vectors of documents."""
        return self.encode_document(texts)

    def encode_document(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dim] vectors of documents."""
        return self._vectors.of("document", list(texts))

    def encode_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dim] vectors of queries."""
        return self._vectors.of("query", list(texts))


def main() -> None:
    """Measure, print and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("pairs", nargs="+")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    args = parser.parse_args()
    collection = read_quora(args.data, args.documents)
    output: dict[str, Any] = {
        "command": shlex.join(["python", "experiments/migration/evaluate.py", "DATA", *sys.argv[2:]]),
        "documents": len(collection.documents),
        "sample": SAMPLE,
        "pairs": [],
    }
    for pair in args.pairs:
        old, new = pair.rsplit(":", 1)
        output["pairs"].append({"old": old, "new": new, **measure(old, new, collection)})
        write_json(args.out, output)


def measure(old: str, new: str, collection: Collection) -> dict[str, Any]:
    """Return the measured recall of every map, and that of the index before and after the move."""
    old_encoder, new_encoder = CachedEncoder(old), CachedEncoder(new)
    documents = [d2v.Document(id, text) for id, text in collection.documents.items()]
    qrels = {id: dict.fromkeys(ids, 1.0) for id, ids in collection.relevant.items()}
    tested = [id for id in collection.queries if not is_dev_query(id)]
    queries = [collection.queries[id] for id in tested]
    judged = {id: qrels[id] for id in tested}
    with tempfile.TemporaryDirectory() as folder:
        rankings = {}
        for name, encoder in (("old", old_encoder), ("new", new_encoder)):
            index = d2v.Index.create(f"{folder}/{name}", encoder)
            index.add(documents)
            rankings[name] = rank(index, queries)
            index.close()
        maps = []
        for kind in MAPS:
            started = time.perf_counter()
            result = d2v.migrate(f"{folder}/old", new_encoder, map=kind, sample=SAMPLE, dry_run=True)
            seconds = round(time.perf_counter() - started, 1)
            assert result.quality
            maps.append({"map": result.map, "seconds": seconds, "held_out": vars(result.quality)})
            print(old, "->", new, result.map, result.quality, flush=True)
        texts = {id: collection.queries[id] for id in tested}
        by_judgement = d2v.migrate(
            f"{folder}/old", new_encoder, map="auto", queries=texts, qrels=judged, min_recall=0.0
        )
        index = d2v.Index.open(f"{folder}/old", new_encoder)
        rankings["mapped"] = rank(index, queries)
        assert by_judgement.quality
        found = {name: score(ranked, tested, judged, rankings["new"]) for name, ranked in rankings.items()}
    print(old, "->", new, by_judgement.map, by_judgement.quality, found, flush=True)
    return {"maps": maps, "chosen": by_judgement.map, "judged": vars(by_judgement.quality), "all_documents": found}


def rank(index: d2v.Index, queries: list[str]) -> dict[str, list[list[str]]]:
    """Return the ids of the first ten documents of each query, by way to search."""
    return {mode: [[hit.id for hit in ranked] for ranked in index.rank(queries, 10, mode)] for mode in MODES}


def score(
    ranked: dict[str, list[list[str]]],
    ids: list[str],
    qrels: dict[str, dict[str, float]],
    reference: dict[str, list[list[str]]],
) -> dict[str, Any]:
    """Return recall@10, its share of the reference's with an interval, and the share of the same documents."""
    scores: dict[str, Any] = {}
    for mode in MODES:
        recalls = [
            [len(set(found) & qrels[id].keys()) / len(qrels[id]) for id, found in zip(ids, lists[mode], strict=True)]
            for lists in (ranked, reference)
        ]
        (value, best), samples = resample(mean_scorer(np.array(recalls)), len(ids))
        low, high = np.quantile(samples[0] / samples[1], [0.025, 0.975])
        shared = [len(set(a) & set(b)) / 10 for a, b in zip(ranked[mode], reference[mode], strict=True)]
        scores[mode] = {
            "recall@10": round(100 * float(value), 2),
            "of_new": round(100 * float(value / best), 2),
            "interval": [round(100 * float(low), 2), round(100 * float(high), 2)],
            "same_ten": round(100 * float(np.mean(shared)), 2),
        }
    return scores


if __name__ == "__main__":
    main()
