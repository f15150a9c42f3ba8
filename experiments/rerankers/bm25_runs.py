"""BM25 runs of BEIR folders, and the quality of rerankers on them.

A run holds the best 200 documents of BM25 for every judged query; a reranker sorts the first of them, down to a depth.
The runs are a file of their own, since the stemmer of BM25 may be missing where there is a GPU.

Run: PYTHONPATH=experiments/general python experiments/rerankers/bm25_runs.py DATA RUNS.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.evaluation.tasks.retrieval import is_dev_query, read_beir
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.maths.ranking import ndcg
from decoder2vec.maths.similarity import normalise
from decoder2vec.reranker import Reranker
from decoder2vec.search.store import encode_texts
from decoder2vec.storage import write_json
from decoder2vec.text.bm25 import BM25
from decoder2vec.text.tokens import Prompt

TASKS = ("scifact", "quora-mini")
DEPTHS = {"scifact": 100, "quora-mini": 50}
"""Documents of a query that are reranked."""
_EVERY = {"quora-mini": 4}
"""Every fourth query of Quora is enough."""
_LONGEST = 200
_MEASURED_AT = (10, 20, 50, 100, 200)
_FUSED = (0.2, 0.35, 0.5)
"""Weights of BM25 in the sum of reciprocal ranks."""
_RANK_OFFSET = 10
_SAMPLES = 10_000

Scores = dict[str, dict[str, float]]
"""Query -> document -> score."""


@dataclass(frozen=True)
class Run:
    """What BM25 finds for the queries of a task, by ids."""

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    run: dict[str, list[str]]
    """Query -> documents, best first."""
    dev: list[str]
    """The dev queries."""


def search_bm25(folder: Path) -> Run:
    """Search the corpus of a BEIR folder for all judged queries; ties are broken as by trec_eval."""
    data = read_beir(folder, "all")
    ids = sorted(data.documents, reverse=True)
    index = BM25([data.documents[document] for document in ids])
    run = {}
    for query, text in data.queries.items():
        documents = [ids[row] for row, _ in index.search(text, _LONGEST + 1)]
        run[query] = [document for document in documents if document != data.own_document(query)][:_LONGEST]
    return Run(data.queries, data.relevant, run, [query for query in data.queries if is_dev_query(query)])


def read_runs(file: Path) -> dict[str, Run]:
    """The runs of the tasks by name."""
    runs = json.loads(file.read_text(encoding="utf-8"))
    names = Run.__dataclass_fields__
    return {task: Run(**{name: of[name] for name in names}) for task, of in runs.items()}


@dataclass
class Cosines:
    """Sorts by the cosines of an encoder's vectors; those of documents are kept."""

    encoder: Any
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def rerank(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """The cosine of each text with the query."""
        of_query, of_texts = self.unit_vectors(query, texts)
        return of_texts @ of_query

    def unit_vectors(self, query: str, texts: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The [dim] vector of the query and the [text, dim] vectors of the texts, of length 1."""
        if new := list(dict.fromkeys(text for text in texts if text not in self.vectors)):
            self.vectors.update(zip(new, normalise(encode_texts(self.encoder, new, "document")), strict=True))
        (of_query,) = normalise(encode_texts(self.encoder, [query], "query"))
        return of_query, np.stack([self.vectors[text] for text in texts])


@dataclass
class Candidates:
    """The pairs of a task that rerankers score; their prompts are kept, since many rerankers have the same."""

    task: str
    run: Run
    corpus: Mapping[str, str]
    _prompts: dict[tuple[Any, ...], dict[tuple[str, str], Prompt]] = field(default_factory=dict)

    @property
    def queries(self) -> list[str]:
        """The queries whose documents are reranked."""
        return list(self.run.run)[:: _EVERY.get(self.task, 1)]

    def score(self, reranker: Any, depth: int) -> Scores:
        """Score the first `depth` documents of each query by a reranker or by `Cosines`."""
        pairs = [(query, document) for query in self.queries for document in self.run.run[query][:depth]]
        if isinstance(reranker, Reranker):
            values = self._score_prompts(reranker, pairs)
        else:
            values = [
                score
                for query in self.queries
                for score in reranker.rerank(
                    self.run.queries[query], [self.corpus[document] for document in self.run.run[query][:depth]]
                )
            ]
        scores: Scores = {query: {} for query in self.queries}
        for (query, document), value in zip(pairs, values, strict=True):
            scores[query][document] = float(value)
        return scores

    def _score_prompts(self, reranker: Reranker, pairs: list[tuple[str, str]]) -> list[float]:
        """As `Reranker.score_pairs`, which tokenises all pairs again each time."""
        spec = reranker.spec
        prompts = self._prompts.setdefault((spec.backbone, spec.method, spec.template, reranker.max_seq_length), {})
        if new := [pair for pair in pairs if pair not in prompts]:
            queries, documents = zip(*new, strict=True)
            tokenised, _ = reranker._tokeniser(
                [self.run.queries[query] for query in queries], [self.corpus[document] for document in documents]
            )
            prompts.update(zip(new, tokenised, strict=True))
        texts = [self.corpus[document] for _, document in pairs]
        return reranker._method([prompts[pair] for pair in pairs], texts).tolist()  # type: ignore[no-any-return]

    def measure(self, reranker: Any, depth: int) -> dict[str, Any]:
        """nDCG@10 in points by depth, alone and fused with BM25, and that of each query at the depth of the task."""
        started = time.perf_counter()
        scores = self.score(reranker, depth)
        report: dict[str, Any] = {"pairs": sum(map(len, scores.values())), "seconds": time.perf_counter() - started}
        run = {query: self.run.run[query] for query in self.queries}
        compared = min(depth, DEPTHS[self.task])
        for at in sorted({compared, *(at for at in _MEASURED_AT if at <= depth)}):
            values = ndcg_at_10(scores, run, self.run.qrels, at)
            report[str(at)] = self.summary(values)
            if at == compared:
                report["queries"] = {query: round(100 * value, 3) for query, value in values.items()}
        for weight in _FUSED:
            values = ndcg_at_10(fuse(scores, run, weight), run, self.run.qrels, compared)
            report[f"fused {weight}"] = self.summary(values)
        return report

    def measure_bm25(self) -> dict[str, Any]:
        """nDCG@10 of the run itself."""
        values = ndcg_at_10({}, {query: self.run.run[query] for query in self.queries}, self.run.qrels, 0)
        return {"0": self.summary(values), "queries": {query: round(100 * v, 3) for query, v in values.items()}}

    def summary(self, values: Mapping[str, float]) -> dict[str, float]:
        """Means over all, dev and test queries, in points."""
        dev = set(self.run.dev)
        parts: dict[str, Collection[float]] = {
            "all": list(values.values()),
            "dev": [value for query, value in values.items() if query in dev],
            "test": [value for query, value in values.items() if query not in dev],
        }
        return {name: round(100 * float(np.mean(list(part))), 2) for name, part in parts.items() if part}


def read_candidates(runs: Path, data: Path) -> dict[str, Candidates]:
    """The pairs of each task, from the file of the runs and the folder that has retrieval/TASK in BEIR's layout."""
    return {
        task: Candidates(task, run, read_beir(data / "retrieval" / task, "all").documents)
        for task, run in read_runs(runs).items()
    }


def ndcg_at_10(
    scores: dict[str, dict[str, float]], run: dict[str, list[str]], qrels: dict[str, dict[str, int]], depth: int
) -> dict[str, float]:
    """nDCG@10 of each query when the first `depth` documents of a run are sorted by their scores."""
    result = {}
    for query, documents in run.items():
        first = documents[:depth]
        ranked = sorted(first, key=lambda document: -scores[query][document]) + documents[depth:]
        gains = qrels[query]
        found = [(rank, gains[document]) for rank, document in enumerate(ranked, 1) if gains.get(document, 0) > 0]
        ranks, of_ranks = np.array(found, np.int64).reshape(-1, 2).T
        result[query] = ndcg(ranks, of_ranks.astype(np.float64), np.array(list(gains.values()), np.float64), 10)
    return result


def fuse(scores: Scores, run: Mapping[str, list[str]], weight: float) -> Scores:
    """Weighted sums of the reciprocal ranks by score and by BM25, whose weight is given, of the documents scored."""
    fused: Scores = {}
    for query, of_query in scores.items():
        by_bm25 = [document for document in run[query] if document in of_query]
        by_score = sorted(by_bm25, key=lambda document: -of_query[document])
        fused[query] = {document: weight / (_RANK_OFFSET + rank) for rank, document in enumerate(by_bm25, 1)}
        for rank, document in enumerate(by_score, 1):
            fused[query][document] += (1 - weight) / (_RANK_OFFSET + rank)
    return fused


def difference(values: Mapping[str, float], others: Mapping[str, float]) -> list[float]:
    """Mean difference of two results on the same queries, with its 95 % interval by paired bootstrap over queries."""
    differences = np.array([values[query] - others[query] for query in values])
    low, high = mean_interval(differences, samples=_SAMPLES)
    return [round(float(value), 2) for value in (differences.mean(), low, high)]


def main() -> None:
    """Read the options and write the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has retrieval/TASK in BEIR's layout")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    arguments = parser.parse_args()
    runs = {task: asdict(search_bm25(arguments.data / "retrieval" / task)) for task in arguments.tasks}
    write_json(arguments.out, runs)


if __name__ == "__main__":
    main()
