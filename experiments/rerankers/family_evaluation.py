"""Reranks BM25's best documents, compares families on the same queries, and measures their speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_models import CONTEXT, make_model
from family_training import LENGTH, PairPrompts, new_optimizer, train_step, wait
from numpy.typing import NDArray
from state_space import best_scan, fast_mixers

from decoder2vec.activations.extract import Extractor
from decoder2vec.config import Reading
from decoder2vec.evaluation.tasks.retrieval import read_beir_texts
from decoder2vec.maths.bootstrap import difference, mean_scorer, resample
from decoder2vec.maths.ranking import ranking_scores
from decoder2vec.reranker import Reranker
from decoder2vec.text.tokens import Prompt

TASKS = {"scifact": (1, 100), "quora-mini": (4, 50)}
"""Every which query is scored, and how many documents of BM25 are reranked."""
METRICS = ("ndcg@10", "mrr")
_CHECKED = 20
"""Pairs that are also scored by the library from their texts."""


def rank_by(scores: Mapping[str, float], ranking: Sequence[str]) -> list[str]:
    """The documents that have scores, best first, then the others in their order."""
    scored = [document for document in ranking if document in scores]
    rest = [document for document in ranking if document not in scores]
    return sorted(scored, key=lambda document: -scores[document]) + rest


def query_metrics(ranking: Sequence[str], gains: Mapping[str, int]) -> dict[str, float]:
    """nDCG@10 and the reciprocal rank of the first relevant document."""
    found = [(rank, gains[document]) for rank, document in enumerate(ranking, 1) if gains.get(document, 0) > 0]
    ranks, of_ranks = np.array(found, np.intp).reshape(-1, 2).T
    metrics = ranking_scores(ranks, of_ranks, np.array(list(gains.values())))
    return {metric: metrics[metric] for metric in METRICS}


def score_pairs(reranker: Reranker, prompts: PairPrompts, pairs: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """Scores of (query, document) pairs of tokenised texts: `Reranker.score_pairs` without tokenising texts again."""
    rows = [prompts(query, document).tolist() for query, document in pairs]
    extractor = Extractor(reranker.backbone, [Reading(-1, "lasttoken", normed=True)], max_length=LENGTH)
    states = extractor.encode_prompts([Prompt(ids, len(ids) - 1, len(ids)) for ids in rows])
    return reranker.score_last_states(states[:, 0])


def evaluate_task(reranker: Reranker, data: Path, run: Mapping[str, Any], every: int, depth: int) -> dict[str, Any]:
    """Rerank one task.

    Args:
        reranker: The reranker.
        data: Folder of the task in BEIR's layout.
        run: Queries, qrels, BM25's rankings ("run") and the ids of the dev queries of the task.
        every: Score every which query.
        depth: Number of documents to rerank.
    """
    documents = read_beir_texts(data)[1]
    queries = list(run["run"])[::every]
    pairs = [(query, document) for query in queries for document in run["run"][query][:depth]]
    texts = {
        text: row
        for row, text in enumerate(dict.fromkeys(t for q, d in pairs for t in (run["queries"][q], documents[d])))
    }
    began = time.perf_counter()
    prompts = PairPrompts.of(reranker.backbone.tokenizer, list(texts))
    scores = score_pairs(reranker, prompts, [(texts[run["queries"][q]], texts[documents[d]]) for q, d in pairs])
    seconds = time.perf_counter() - began
    by_query: dict[str, dict[str, float]] = {query: {} for query in queries}
    for (query, document), score in zip(pairs, scores.tolist(), strict=True):
        by_query[query][document] = score
    values = {"reranked": {}, "bm25": {}}  # type: dict[str, dict[str, dict[str, float]]]
    for query in queries:
        ranking, gains = run["run"][query], run["qrels"][query]
        values["reranked"][query] = query_metrics(rank_by(by_query[query], ranking), gains)
        values["bm25"][query] = query_metrics(ranking, gains)
    few = pairs[:_CHECKED]
    library = reranker.score_pairs([run["queries"][q] for q, _ in few], [documents[d] for _, d in few])
    dev = set(run["dev"])
    return {
        "queries": len(queries),
        "pairs": len(pairs),
        "depth": depth,
        "seconds": round(seconds, 1),
        "difference_from_library": float(np.abs(library - scores[: len(few)]).max()),
        "mean": {name: _mean(of, queries) for name, of in values.items()},
        "mean_test": {name: _mean(of, [q for q in queries if q not in dev]) for name, of in values.items()},
        "by_query": {name: {q: [round(of[q][m], 4) for m in METRICS] for q in queries} for name, of in values.items()},
    }


def _mean(values: Mapping[str, Mapping[str, float]], queries: Sequence[str]) -> dict[str, float]:
    return {m: round(100 * float(np.mean([values[q][m] for q in queries] or [0.0])), 2) for m in METRICS}


def compare(by_family: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Differences of nDCG@10 between all families and BM25 on the same queries, with bootstrap intervals, by task."""
    result: dict[str, Any] = {}
    for task in TASKS:
        done = {family: document["tasks"][task] for family, document in by_family.items() if task in document["tasks"]}
        if not done:
            continue
        tables = {"bm25": next(iter(done.values()))["by_query"]["bm25"]}
        tables |= {family: of["by_query"]["reranked"] for family, of in done.items()}
        queries = list(tables["bm25"])
        values = np.array([[table[query][0] for query in queries] for table in tables.values()])
        means, samples = resample(mean_scorer(values), len(queries))
        result[task] = {}
        for (a, first), (b, second) in combinations(enumerate(tables), 2):
            gap = difference(means[b] - means[a], samples[b] - samples[a])
            limits = {"value": gap.value, "low": gap.low, "high": gap.high}
            result[task][f"{second} minus {first}"] = {key: round(100 * value, 2) for key, value in limits.items()}
    return result


# --- speed ------------------------------------------------------------------------------------------------------------


def seconds_per_call(function: Callable[[], object], device: str, seconds: float) -> float:
    """The median over calls for some seconds, after two calls that are not counted."""
    for _ in range(2):
        function()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        wait(device)
        began = time.perf_counter()
        function()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_speed(
    family: str, size: str, vocabulary: int, device: str, lengths: Sequence[int], *, batch: int, seconds: float
) -> dict[str, Any]:
    """Tokens per second of training and inference of one family with random weights.

    Mamba and Mamba-2 are measured twice: as computed here, and by transformers without kernels, in small batches.
    """
    own_path = {"mamba": best_scan(device)[0], "mamba2": "matrix products"}.get(family, "transformers, sdpa")
    result: dict[str, Any] = {own_path: _measure(family, size, vocabulary, device, lengths, batch, seconds)}
    if family.startswith("mamba"):
        small = max(1, batch // 8)
        result["transformers"] = _measure(family, size, vocabulary, device, lengths, small, seconds, fast=False)
    return result


def _measure(
    family: str, size: str, vocabulary: int, device: str, lengths: Sequence[int], batch: int, seconds: float,
    fast: bool = True,
) -> dict[str, Any]:  # fmt: skip
    model = make_model(family, size, vocabulary, end=0).to(device)
    with fast_mixers() if fast else nullcontext():
        ids = torch.randint(2, vocabulary, (4 * batch, min(LENGTH, CONTEXT[size])), device=device)
        optimizer = new_optimizer(list(model.named_parameters()), 0.1, device)
        took = seconds_per_call(lambda: train_step(model, optimizer, ids, 1e-5), device, seconds)
        result: dict[str, Any] = {"training": {"batch": len(ids), "length": ids.shape[1]}}
        result["training"]["tokens_per_second"] = round(ids.numel() / took)
        decoder = model.base_model.eval().to(torch.bfloat16 if device == "cuda" else torch.float32)
        for length in lengths:
            ids = torch.randint(2, vocabulary, (batch, length), device=device)
            with torch.inference_mode():
                took = seconds_per_call(lambda ids=ids: decoder(input_ids=ids, use_cache=False), device, seconds)
            result[f"inference {length}"] = {"batch": batch, "pairs_per_second": round(batch / took, 1)}
    return result
