"""Evaluate BM25, shared terms, an encoder, and both together on the jobs and resumes that come with the package.

    python experiments/matching/evaluate.py bm25 results/matching/bm25.json
    python experiments/matching/evaluate.py ENCODER OUT.json [--template T] [--pooling P] [--layer N] [--trained]

Aggregate, fusion and weight are selected by nDCG@10 on the jobs of the dev families; the jobs of the test families are
evaluated once. Every job ranks all 200 resumes. Metrics of `train_and_test` families are valid only for encoders that
were not trained on the train families (`--trained` omits them). An encoder without a head is evaluated unchanged and
also standardised, fitted without labels on texts of the train families.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from decoder2vec.matching.evaluation import FITS, LabelledSet, evaluate_ranking, per_query_metrics, read_labelled_set
from decoder2vec.matching.match import CALIBRATED, FUSIONS, MatchConfig, SideScores, score_sides
from decoder2vec.matching.section_scores import AGGREGATES, TextSimilarity, full_text
from decoder2vec.matching.terms import bm25_scores
from decoder2vec.storage import versions

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(1, 10))
UNCHANGED = "as it is"
"""Key of the unchanged encoder in the result files."""


def main() -> None:
    """Evaluate, print and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    for name in ("--template", "--pooling"):
        parser.add_argument(name)
    parser.add_argument("--layer", type=int)
    parser.add_argument("--trained", action="store_true")
    args = parser.parse_args()
    labelled, started = read_labelled_set(), time.perf_counter()
    output: dict[str, Any] = {"encoder": Path(args.encoder).name}
    results: dict[str, Any] = {}
    if args.encoder == "bm25":
        texts = [[full_text(document) for document in side.documents] for side in (labelled.jobs, labelled.resumes)]
        results["bm25"] = _metrics(bm25_scores(*texts), bm25_scores(*texts[::-1]), labelled, args.trained)
    else:
        encoder = _load_encoder(args)
        output |= {"spec": encoder.spec.to_json(), "fingerprint": encoder.fingerprint, "chosen_on_dev": {}}
        for name, similarity in _similarities(encoder, labelled).items():
            scores = {
                aggregate: score_sides(labelled.jobs, labelled.resumes, similarity, aggregate)
                for aggregate in AGGREGATES
            }
            matrices, output["chosen_on_dev"][name] = _choose_on_dev(scores, labelled)
            for kind, (for_jobs, for_resumes) in matrices.items():
                key = kind if name == UNCHANGED or kind == "terms" else f"{kind}, {name}"
                results[key] = _metrics(for_jobs, for_resumes, labelled, args.trained)
    output |= {"results": results, "seconds": round(time.perf_counter() - started, 1), "versions": versions()}
    for name, metrics in results.items():
        print(name, json.dumps(metrics["test"]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(output, indent=1) + "\n", encoding="utf-8")


def _load_encoder(args: argparse.Namespace) -> Any:
    from decoder2vec import Encoder

    return Encoder.from_pretrained(args.encoder, template=args.template, pooling=args.pooling, layer=args.layer)


def _similarities(encoder: Any, labelled: LabelledSet) -> dict[str, TextSimilarity]:
    unchanged = TextSimilarity(encoder, show_progress_bar=True)
    if encoder.head is not None:
        return {UNCHANGED: unchanged}
    sides = ((labelled.jobs, labelled.job_splits), (labelled.resumes, labelled.resume_splits))
    documents = [pair for side, splits in sides for pair in zip(side.documents, splits, strict=True)]
    train_texts = [full_text(document) for document, split in documents if split == "train"]
    return {UNCHANGED: unchanged, "standardised": unchanged.standardised(train_texts)}


def _choose_on_dev(scores: dict[str, SideScores], labelled: LabelledSet) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return term, dense and hybrid scores for jobs and for resumes, and the options chosen on dev."""
    dev = labelled.job_indices("dev")

    def ndcg(matrix: Any) -> float:
        return float(per_query_metrics(matrix[dev], labelled.grades[dev])["ndcg@10"].mean())

    dense_aggregate = max(AGGREGATES, key=lambda aggregate: ndcg(scores[aggregate].dense))
    configs = [
        MatchConfig(weight=weight, fusion=fusion, aggregate=aggregate)
        for aggregate in AGGREGATES
        for fusion in (CALIBRATED, *FUSIONS)
        for weight in WEIGHTS
    ]
    best = max(configs, key=lambda config: ndcg(scores[config.aggregate].fused(config).for_left))
    dense, hybrid = scores[dense_aggregate].dense, scores[best.aggregate]
    matrices = {
        "terms": (hybrid.lexical, hybrid.lexical.T),
        "dense": (dense, dense.T),
        "hybrid": _both_directions(hybrid, best),
        "default of d2v match": _both_directions(scores["sections"], MatchConfig()),
    }
    by_weight = {
        f"{weight:g}": round(100 * ndcg(hybrid.fused(replace(best, weight=weight)).for_left), 1)
        for weight in (0, *WEIGHTS, 1)
    }
    by_aggregate = {aggregate: round(100 * ndcg(scores[aggregate].dense), 1) for aggregate in AGGREGATES}
    return matrices, {
        "dense_aggregate": dense_aggregate,
        "dense_ndcg@10": by_aggregate,
        "hybrid": asdict(best),
        "hybrid_ndcg@10_by_weight": by_weight,
    }


def _both_directions(scores: SideScores, config: MatchConfig) -> tuple[Any, Any]:
    fused = scores.fused(config)
    return fused.for_left, fused.for_right.T


def _metrics(for_jobs: Any, for_resumes: Any, labelled: LabelledSet, trained: bool) -> dict[str, Any]:
    groups = {"dev": ("dev",), "test": ("test",)} | ({} if trained else {"train_and_test": ("train", "test")})
    by_group = {}
    for name, splits in groups.items():
        jobs = labelled.job_indices(*splits)
        precision = average_precision_score((labelled.grades[jobs] == FITS).ravel(), for_jobs[jobs].ravel())
        pooled = {"average_precision_of_all_pairs": round(100 * float(precision), 1)}
        by_group[name] = evaluate_ranking(for_jobs, labelled, jobs) | pooled
    return by_group | {"test_resumes_to_jobs": _resume_metrics(for_resumes, labelled)}


def _resume_metrics(scores: Any, labelled: LabelledSet) -> dict[str, float]:
    """Evaluate the other direction: every resume of the test families ranks all jobs."""
    rows = [index for index, split in enumerate(labelled.resume_splits) if split == "test"]
    metrics = per_query_metrics(np.asarray(scores)[rows], labelled.grades.T[rows])
    return {name: round(100 * float(values.mean()), 1) for name, values in metrics.items()}


if __name__ == "__main__":
    main()
