"""BM25, an encoder, and both together on the jobs and resumes that come with the package.

    python experiments/matching/evaluate.py bm25 results/matching/bm25.json
    python experiments/matching/evaluate.py ENCODER OUT.json [--template T] [--pooling P] [--layer N] [--trained]

How sections make a score, how both kinds of scores are fused and with which weight is chosen by nDCG@10 on the jobs of
the dev families; the jobs of the test families are scored once. Every job is asked of all 200 resumes. Numbers for
`train_and_test` families are for encoders that were not trained on the former (`--trained` leaves them out). An encoder
without a head of its own is read as it is and also standardised: fitted on texts of the train families, without labels.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.matching.evaluation import LabelledSet, evaluate_ranking, per_query, read_labelled_set
from decoder2vec.matching.match import FUSIONS, MatchChoices, SideScores, score_sides
from decoder2vec.matching.section_scores import AGGREGATES, Similarities, full_text
from decoder2vec.matching.terms import lexical_scores
from decoder2vec.storage import versions

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(1, 10))


def main() -> None:
    """Evaluate, print, write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    for name in ("--template", "--pooling"):
        parser.add_argument(name)
    parser.add_argument("--layer", type=int)
    parser.add_argument("--trained", action="store_true")
    asked = parser.parse_args()
    labelled, started = read_labelled_set(), time.perf_counter()
    document: dict[str, Any] = {"encoder": Path(asked.encoder).name}
    results: dict[str, Any] = {}
    if asked.encoder == "bm25":
        texts = [[full_text(one) for one in side.documents] for side in (labelled.jobs, labelled.resumes)]
        results["bm25"] = _report(lexical_scores(*texts), lexical_scores(*texts[::-1]), labelled, asked.trained)
    else:
        encoder = _encoder(asked)
        document |= {"spec": encoder.spec.to_json(), "fingerprint": encoder.fingerprint, "chosen_on_dev": {}}
        for name, reader in _readers(encoder, labelled).items():
            scores = {how: score_sides(labelled.jobs, labelled.resumes, reader, how) for how in AGGREGATES}
            tables, document["chosen_on_dev"][name] = _chosen(scores, labelled)
            for kind, (table, back) in tables.items():
                key = kind if name == "as it is" or kind == "bm25" else f"{kind}, {name}"
                results[key] = _report(table, back, labelled, asked.trained)
    document |= {"results": results, "seconds": round(time.perf_counter() - started, 1), "versions": versions()}
    for name, found in results.items():
        print(name, json.dumps(found["test"]))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _encoder(asked: argparse.Namespace) -> Any:
    from decoder2vec import Encoder

    return Encoder.from_pretrained(asked.encoder, template=asked.template, pooling=asked.pooling, layer=asked.layer)


def _readers(encoder: Any, labelled: LabelledSet) -> dict[str, Similarities]:
    bare = Similarities(encoder, show_progress_bar=True)
    if encoder.head is not None:
        return {"as it is": bare}
    sides = ((labelled.jobs, labelled.job_splits), (labelled.resumes, labelled.resume_splits))
    documents = [pair for side, splits in sides for pair in zip(side.documents, splits, strict=True)]
    texts = [full_text(one) for one, split in documents if split == "train"]
    return {"as it is": bare, "standardised": bare.standardised(texts)}


def _chosen(scores: dict[str, SideScores], labelled: LabelledSet) -> tuple[dict[str, Any], dict[str, Any]]:
    """BM25, dense and hybrid scores in both directions, and what dev chose."""
    dev = labelled.jobs_of("dev")

    def gain(table: Any) -> float:
        return float(per_query(table[dev], labelled.grades[dev])["ndcg@10"].mean())

    dense = max(AGGREGATES, key=lambda name: gain(scores[name].dense))
    tried = [
        MatchChoices(weight=weight, fusion=fusion, aggregate=name)
        for name in AGGREGATES
        for fusion in FUSIONS
        for weight in WEIGHTS
    ]
    best = max(tried, key=lambda choices: gain(scores[choices.aggregate].for_left(choices)))
    own = scores[best.aggregate]
    tables = {
        "bm25": (own.lexical, own.lexical_back.T),
        "dense": (scores[dense].dense, scores[dense].dense.T),
        "hybrid": (own.for_left(best), own.for_right(best).T),
    }
    by_weight = {
        f"{weight:g}": round(100 * gain(own.for_left(replace(best, weight=weight))), 1) for weight in (0, *WEIGHTS, 1)
    }
    by_aggregate = {name: round(100 * gain(scores[name].dense), 1) for name in AGGREGATES}
    return tables, {
        "dense_aggregate": dense,
        "dense_ndcg@10": by_aggregate,
        "hybrid": asdict(best),
        "hybrid_ndcg@10_by_weight": by_weight,
    }


def _report(table: Any, back: Any, labelled: LabelledSet, trained: bool) -> dict[str, Any]:
    groups = {"dev": ("dev",), "test": ("test",)} | ({} if trained else {"train_and_test": ("train", "test")})
    found = {name: evaluate_ranking(table, labelled, labelled.jobs_of(*splits)) for name, splits in groups.items()}
    return found | {"test_resumes_to_jobs": _back(back, labelled)}


def _back(table: Any, labelled: LabelledSet) -> dict[str, float]:
    """The other direction: the test families' resumes, each asked of all jobs."""
    rows = [place for place, split in enumerate(labelled.resume_splits) if split == "test"]
    values = per_query(np.asarray(table)[rows], labelled.grades.T[rows])
    return {name: round(100 * float(value.mean()), 1) for name, value in values.items()}


if __name__ == "__main__":
    main()
