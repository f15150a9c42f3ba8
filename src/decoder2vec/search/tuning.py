"""Choose how hybrid search fuses both rankings, and how many documents a reranker rescores, on known answers.

Files have the BEIR layout: queries with `_id` and `text`, and qrels (relevance judgements) with `query-id`,
`corpus-id` and `score`.

What the choice is worth is measured by cross-validation: the queries are split into five folds, and each fold is scored
with the fusion that is best on the other four. So no query is scored with a fusion that it helped to choose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths import ranking
from decoder2vec.maths.bootstrap import Difference, Floats, difference, mean_scorer, resample
from decoder2vec.progress import current_progress
from decoder2vec.search.hybrid import FUSIONS, Candidates, Fusion, RankedDocument
from decoder2vec.text.files import read_rows

WEIGHTS = tuple(step / 20 for step in range(21))
"""Weights of the dense ranking that are tried."""
MIN_QUERIES = 20
"""With fewer queries, differences between fusions are mostly noise."""
_FOLDS = 5
_DEPTH = 100
"""Documents of each ranking that are fused."""
_NDCG_CUTOFF = 10
RERANK_DEPTHS = (10, 20, 30, 50, 100)
"""Numbers of documents to rescore that are tried."""

Qrels = Mapping[str, Mapping[str, float]]
"""Query id -> document id -> relevance."""

FindCandidates = Callable[[Sequence[str], int], list[Candidates]]
"""Queries and a number of documents -> both rankings of that many documents for each query."""

ScoreDocuments = Callable[[str, Sequence[RankedDocument]], Sequence[float]]
"""A query and documents -> the score that a reranker gives each."""
Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True)
class SearchScore:
    """nDCG@10 of one way to search, in percent; that of a fusion is cross-validated."""

    method: str
    """dense, lexical, or the method of a fusion."""
    score: float
    fusion: Fusion | None = None
    """The fusion of this method that is best on all queries."""


@dataclass(frozen=True)
class RerankTuning:
    """How many documents a reranker should rescore, and what it is worth."""

    depth: int
    """The best number on all queries; of equal ones the lowest, which is the fastest."""
    score: float
    """Cross-validated nDCG@10 with the reranker, in percent."""
    gain: Difference
    """What the reranker adds to nDCG@10 of the same search without it, with the 95 % bootstrap interval."""
    scores: dict[int, float]
    """nDCG@10 by the number of documents, in percent."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        gain = {"value": self.gain.value, "low": self.gain.low, "high": self.gain.high}
        return {"depth": self.depth, "score": self.score, "gain": gain, "scores": self.scores}


@dataclass(frozen=True)
class TuningResult:
    """The fusion that was chosen, and what it is worth."""

    before: Fusion
    best: Fusion
    """The fusion to use from now on: `before`, if no other one is better on queries that did not choose it."""
    score_before: float
    """nDCG@10 with `before`, in percent."""
    score_after: float
    """Cross-validated nDCG@10 of the fusion that is best on the queries, in percent."""
    gain: Difference
    """What tuning adds to nDCG@10, with the 95 % bootstrap interval over queries."""
    scores: list[SearchScore]
    """Dense and lexical search, then each fusion method."""
    n_queries: int
    """Number of queries with a relevant document."""
    reranked: RerankTuning | None = None
    """With a reranker, that after the fusion."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        scores = [
            {"way": score.method, "score": score.score, "fusion": asdict(score.fusion) if score.fusion else None}
            for score in self.scores
        ]
        gain = {"value": self.gain.value, "low": self.gain.low, "high": self.gain.high}
        return {
            "before": asdict(self.before),
            "best": asdict(self.best),
            "score_before": self.score_before,
            "score_after": self.score_after,
            "gain": gain,
            "scores": scores,
            "queries": self.n_queries,
            **({"reranked": self.reranked.to_json()} if self.reranked else {}),
        }


def choose_fusion(
    candidates_of: FindCandidates,
    queries: Mapping[str, str],
    qrels: Qrels,
    before: Fusion,
    rerank: ScoreDocuments | None = None,
    depth: int = RERANK_DEPTHS[-1],
) -> TuningResult:
    """Try every fusion method with every weight and, after the best one, a reranker at several depths.

    Args:
        candidates_of: Finds both rankings in the index that is searched.
        queries: Query id -> text.
        qrels: Query id -> document id -> relevance; queries without a relevant document are ignored.
        before: The fusion that is used so far.
        rerank: Scores documents; the documents of a query are ranked by the fusion that is best on other queries.
        depth: Maximum number of documents of a query to rescore.

    Raises:
        InputError: Fewer than 20 queries have a relevant document.
    """
    ids = [id for id in queries if any(relevance > 0 for relevance in qrels.get(id, {}).values())]
    if len(ids) < MIN_QUERIES:
        raise InputError(
            f"Tuning needs {MIN_QUERIES} queries with a relevant document or more, and there are {len(ids)}: with "
            "so few, differences between fusions are mostly noise. Give more queries; the fusion is unchanged."
        )
    found = candidates_of([queries[id] for id in ids], _DEPTH)
    candidates = {id: _without_itself(id, both, qrels) for id, both in zip(ids, found, strict=True)}

    def score(rank: Callable[..., Sequence[RankedDocument]]) -> Floats:
        """[queries] nDCG@10, in percent, of the rankings that `rank` makes of the candidates."""
        rankings = ([document.id for document in rank(*candidates[id])] for id in ids)
        return np.array([100 * ndcg_at_10(ranked, qrels[id]) for id, ranked in zip(ids, rankings, strict=True)])

    scores = [
        SearchScore("dense", float(score(lambda dense, lexical, full: dense).mean())),
        SearchScore("lexical", float(score(lambda dense, lexical, full: lexical).mean())),
    ]
    values: dict[Fusion, Floats] = {}
    folds = _folds(ids)
    for method in FUSIONS:
        tried = {fusion: score(fusion) for fusion in (Fusion(method, weight) for weight in WEIGHTS)}
        scores.append(SearchScore(method, float(_cross_validate(tried, folds, _best).mean()), _best(tried)))
        values |= tried
    score_before, score_after = score(before), _cross_validate(values, folds, _best)
    gain = _paired_difference(score_after, score_before)
    best = _best(values) if gain.value > 0 else before
    result = TuningResult(before, best, float(score_before.mean()), float(score_after.mean()), gain, scores, len(ids))
    if rerank is None:
        return result
    chosen = {
        fold: _best({fusion: each[folds != fold] for fusion, each in values.items()}) if gain.value > 0 else before
        for fold in set(folds.tolist())
    }
    first_stage = {id: chosen[fold](*candidates[id])[:depth] for id, fold in zip(ids, folds.tolist(), strict=True)}
    without = score_after if gain.value > 0 else score_before
    return replace(result, reranked=_choose_depth(first_stage, queries, qrels, rerank, folds, without, depth))


def _choose_depth(
    first_stage: Mapping[str, Sequence[RankedDocument]],
    queries: Mapping[str, str],
    qrels: Qrels,
    rerank: ScoreDocuments,
    folds: NDArray[np.intp],
    without: Floats,
    depth: int,
) -> RerankTuning:
    """Rescore the documents of each query once, and measure every depth up to the largest.

    Args:
        first_stage: Query id -> the documents to rescore, best first.
        queries: Query id -> text.
        qrels: Query id -> document id -> relevance.
        rerank: Scores the documents.
        folds: [queries] fold of each.
        without: [queries] nDCG@10 without the reranker, in percent.
        depth: The largest number of documents.
    """
    if depth < 1:
        raise InputError(f"A depth of {depth} rescores nothing; give 1 or more.")
    depths = [*(each for each in RERANK_DEPTHS if each < depth), depth]
    values = {each: np.empty(len(first_stage)) for each in depths}
    for row, (id, ranked) in enumerate(first_stage.items()):
        score_of = dict(zip((document.id for document in ranked), rerank(queries[id], ranked), strict=True))
        ids = [document.id for document in ranked]
        for each in depths:
            reranked = sorted(ids[:each], key=lambda name: -score_of[name]) + ids[each:]
            values[each][row] = 100 * ndcg_at_10(reranked, qrels[id])
        current_progress().advance(1)

    def best_depth(scores: Mapping[int, Floats]) -> int:
        return max(scores, key=lambda each: (round(float(scores[each].mean()), 6), -each))

    chosen = _cross_validate(values, folds, best_depth)
    gain = _paired_difference(chosen, without)
    by_depth = {each: round(float(scores.mean()), 4) for each, scores in values.items()}
    return RerankTuning(best_depth(values), float(chosen.mean()), gain, by_depth)


def ndcg_at_10(ranked_ids: Sequence[str], relevances: Mapping[str, float]) -> float:
    """Return the normalised discounted cumulative gain of the first ten documents."""
    judged = [(rank, relevances[id]) for rank, id in enumerate(ranked_ids, 1) if id in relevances]
    ranks = np.array([rank for rank, _ in judged], np.intp)
    gains = np.array([gain for _, gain in judged])
    return ranking.ndcg(ranks, gains, np.array(list(relevances.values())), _NDCG_CUTOFF)


def read_queries(file: Path) -> dict[str, str]:
    """Read query id -> text from a file with `_id` (or `id`) and `text`."""
    queries = {}
    for line, row in read_rows(file):
        id, text = row.get("_id", row.get("id")), row.get("text")
        if id is None or not isinstance(text, str):
            raise DataFileError(f"{file}, line {line}: a query has `_id` and `text`; this row has {', '.join(row)}.")
        queries[str(id)] = text
    return queries


def _without_itself(id: str, candidates: Candidates, qrels: Qrels) -> Candidates:
    """Remove the document with the id of the query, which is the query itself, unless it is judged."""
    if id in qrels[id]:
        return candidates
    dense, lexical, full = candidates
    return [document for document in dense if document.id != id], [doc for doc in lexical if doc.id != id], full


def _folds(ids: Sequence[str]) -> NDArray[np.intp]:
    """[queries] fold of each: all of nearly equal size, in an order that depends on the ids alone."""
    order = sorted(range(len(ids)), key=lambda row: hashlib.sha1(ids[row].encode()).hexdigest())
    folds = np.empty(len(ids), np.intp)
    folds[order] = np.arange(len(ids)) % _FOLDS
    return folds


def _best(values: Mapping[Fusion, Floats]) -> Fusion:
    """Return the fusion with the highest mean; of equal ones that which is nearest to the default."""
    default = Fusion()

    def quality(fusion: Fusion) -> tuple[float, bool, float]:
        distance = round(abs(fusion.weight - default.weight), 6)
        return round(float(values[fusion].mean()), 6), fusion.method == default.method, -distance

    return max(values, key=quality)


def _cross_validate(
    values: Mapping[Choice, Floats], folds: NDArray[np.intp], best: Callable[[Mapping[Choice, Floats]], Choice]
) -> Floats:
    """[queries] values, those of each fold with the choice that is best on the other folds."""
    result = np.empty(len(folds))
    for fold in set(folds.tolist()):
        chosen = best({choice: scores[folds != fold] for choice, scores in values.items()})
        result[folds == fold] = values[chosen][folds == fold]
    return result


def _paired_difference(after: Floats, before: Floats) -> Difference:
    values, samples = resample(mean_scorer(np.stack([after, before])), len(after))
    return difference(float(values[0] - values[1]), samples[0] - samples[1])
