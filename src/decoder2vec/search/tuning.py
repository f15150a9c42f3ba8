"""Choose how hybrid search fuses both rankings, on queries with known answers.

Files have the BEIR layout: queries with `_id` and `text`, and qrels (relevance judgements) with `query-id`,
`corpus-id` and `score`. A query belongs to the dev part if sha1(id) mod 10 < 3. The other queries are the test part,
which is scored and chooses nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths import ranking
from decoder2vec.search.hybrid import FUSIONS, Fusion, RankedDocument
from decoder2vec.text.files import read_rows

WEIGHTS = tuple(step / 20 for step in range(21))
"""Weights of the dense ranking that are tried."""
_DEPTH = 100
"""Documents of each ranking that are fused."""
_NDCG_CUTOFF = 10

Qrels = Mapping[str, Mapping[str, float]]
"""Query id -> document id -> relevance."""

Rank = Callable[[Sequence[str], int, str], list[list[RankedDocument]]]
"""Ranks documents for queries, as `Index.rank` does: queries, number of documents, mode."""


@dataclass(frozen=True)
class SearchScore:
    """nDCG@10 of one way to search, in percent."""

    method: str
    """dense, lexical, or the method of a fusion."""
    dev: float
    test: float
    fusion: Fusion | None = None


@dataclass(frozen=True)
class TuningResult:
    """The fusion that is best on dev, and the scores of all methods."""

    best: Fusion
    scores: list[SearchScore]
    """Dense and lexical search, then each fusion method with its best weight on dev."""
    n_dev: int
    """Number of dev queries."""
    n_test: int
    """Number of test queries."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        scores = [
            {
                "way": score.method,
                "dev": score.dev,
                "test": score.test,
                "fusion": asdict(score.fusion) if score.fusion else None,
            }
            for score in self.scores
        ]
        return {"best": asdict(self.best), "scores": scores, "queries": [self.n_dev, self.n_test]}


def choose_fusion(rank: Rank, queries: Mapping[str, str], qrels: Qrels) -> TuningResult:
    """Try every fusion method with every weight on the dev queries.

    Args:
        rank: `Index.rank` of the index that is searched.
        queries: Query id -> text.
        qrels: Query id -> document id -> relevance; queries without a relevant document are ignored.

    Raises:
        InputError: No dev query has a relevant document.
    """
    ids = [id for id in queries if any(relevance > 0 for relevance in qrels.get(id, {}).values())]
    dev, test = [id for id in ids if is_dev_query(id)], [id for id in ids if not is_dev_query(id)]
    if not dev:
        raise InputError(
            f"None of the {len(queries)} queries is a dev query with a judged document; give more queries."
        )
    dense, lexical = (_rankings(rank, queries, ids, mode, qrels) for mode in ("dense", "lexical"))

    def score(method: str, rankings: Mapping[str, Sequence[RankedDocument]], fusion: Fusion | None) -> SearchScore:
        values = {id: ndcg_at_10([document.id for document in rankings[id]], qrels[id]) for id in ids}
        return SearchScore(method, _mean_percent(values, dev), _mean_percent(values, test), fusion)

    scores = [score("dense", dense, None), score("lexical", lexical, None)]
    best: list[SearchScore] = []
    for method in FUSIONS:
        fusions = [Fusion(method, weight) for weight in WEIGHTS]
        tried = [score(method, {id: fusion(dense[id], lexical[id]) for id in ids}, fusion) for fusion in fusions]
        best.append(max(tried, key=lambda fused: fused.dev))
    chosen = max(best, key=lambda fused: fused.dev).fusion
    assert chosen is not None
    return TuningResult(chosen, [*scores, *best], len(dev), len(test))


def ndcg_at_10(ranked_ids: Sequence[str], relevances: Mapping[str, float]) -> float:
    """Return the normalised discounted cumulative gain of the first ten documents."""
    judged = [(rank, relevances[id]) for rank, id in enumerate(ranked_ids, 1) if id in relevances]
    ranks = np.array([rank for rank, _ in judged], np.intp)
    gains = np.array([gain for _, gain in judged])
    return ranking.ndcg(ranks, gains, np.array(list(relevances.values())), _NDCG_CUTOFF)


def is_dev_query(query_id: str) -> bool:
    """Return whether a query belongs to the dev part, on which the fusion is chosen."""
    return int(hashlib.sha1(query_id.encode()).hexdigest(), 16) % 10 < 3


def read_queries(file: Path) -> dict[str, str]:
    """Read query id -> text from a file with `_id` (or `id`) and `text`."""
    queries = {}
    for line, row in read_rows(file):
        id, text = row.get("_id", row.get("id")), row.get("text")
        if id is None or not isinstance(text, str):
            raise DataFileError(f"{file}, line {line}: a query has `_id` and `text`; this row has {', '.join(row)}.")
        queries[str(id)] = text
    return queries


def read_qrels(file: Path) -> dict[str, dict[str, float]]:
    """Read query id -> document id -> relevance from a file with `query-id`, `corpus-id` and `score`."""
    qrels: dict[str, dict[str, float]] = {}
    for line, row in read_rows(file):
        try:
            qrels.setdefault(str(row["query-id"]), {})[str(row["corpus-id"])] = float(row["score"])
        except (KeyError, TypeError, ValueError):
            raise DataFileError(f"{file}, line {line}: a row has query-id, corpus-id and a number as score.") from None
    return qrels


def _rankings(
    rank: Rank, queries: Mapping[str, str], ids: Sequence[str], mode: str, qrels: Qrels
) -> dict[str, list[RankedDocument]]:
    rankings = rank([queries[id] for id in ids], _DEPTH, mode)
    return {
        # a document with the id of the query is the query itself, unless it is judged
        id: [document for document in ranked if document.id != id or id in qrels[id]]
        for id, ranked in zip(ids, rankings, strict=True)
    }


def _mean_percent(values: Mapping[str, float], ids: Sequence[str]) -> float:
    return 100 * sum(values[id] for id in ids) / len(ids) if ids else math.nan
