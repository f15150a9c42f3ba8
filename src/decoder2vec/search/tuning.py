"""How the two rankings are fused best, found on the dev part of queries whose answers are known.

Files are those of the BEIR layout: queries with `_id` and `text`, and judgements with `query-id`, `corpus-id`, `score`.
A query is of the dev part if the last digit of the sha1 of its id, as a number, is 0, 1 or 2; the rest is the test
part, which is scored and chooses nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths import ranking
from decoder2vec.search.hybrid import FUSIONS, Found, Fusion
from decoder2vec.search.index import Index
from decoder2vec.text.files import read_rows

_DEPTH = 100
_CUT = 10
WEIGHTS = tuple(step / 20 for step in range(21))

Judgements = dict[str, dict[str, float]]
"""Query id -> document id -> how relevant it is."""


@dataclass(frozen=True)
class Score:
    """nDCG@10 of one way to search, in percent."""

    way: str
    dev: float
    test: float
    fusion: Fusion | None = None


@dataclass(frozen=True)
class Tuned:
    """What was found."""

    best: Fusion
    scores: list[Score]
    """Of dense and lexical search, and of each fusion with the weight that is best on dev."""
    queries: tuple[int, int]
    """Of the dev and of the test part."""


def tune(index: Index, queries: Mapping[str, str], judged: Judgements) -> Tuned:
    """Try every fusion with every weight on the dev part; the best is not yet set in the index."""
    ids = [id for id in queries if any(value > 0 for value in judged.get(id, {}).values())]
    dev, test = [id for id in ids if in_dev(id)], [id for id in ids if not in_dev(id)]
    if not dev:
        raise InputError(f"Of {len(queries)} queries none of the dev part has a judged document; give more queries.")
    rankings = {way: _rankings(index, queries, ids, way, judged) for way in ("dense", "lexical")}

    def score(fusion: Fusion | None, way: str = "") -> Score:
        found = {
            id: rankings[way][id] if fusion is None else fusion(rankings["dense"][id], rankings["lexical"][id])
            for id in ids
        }
        values = {id: ndcg([one.document for one in found[id]], judged[id]) for id in ids}
        return Score(way or f"{fusion.method}" if fusion else way, _mean(values, dev), _mean(values, test), fusion)

    scores = [score(None, "dense"), score(None, "lexical")]
    for method in FUSIONS:
        tried = [score(Fusion(method, weight)) for weight in WEIGHTS]
        scores.append(max(tried, key=lambda one: one.dev))
    best = max(scores[2:], key=lambda one: one.dev).fusion
    assert best is not None
    return Tuned(best, scores, (len(dev), len(test)))


def ndcg(ranked: Sequence[str], judged: Mapping[str, float]) -> float:
    """Normalised discounted cumulative gain of the first ten documents."""
    found = [(rank, judged[document]) for rank, document in enumerate(ranked, 1) if document in judged]
    ranks = np.array([rank for rank, _ in found], np.intp)
    return ranking.ndcg(ranks, np.array([gain for _, gain in found]), np.array(list(judged.values())), _CUT)


def in_dev(query: str) -> bool:
    """Does a query belong to the part on which things are chosen?"""
    return int(hashlib.sha1(query.encode()).hexdigest(), 16) % 10 < 3


def read_queries(file: Path) -> dict[str, str]:
    """Texts of queries by id."""
    found = {}
    for line, row in read_rows(file):
        id, text = row.get("_id", row.get("id")), row.get("text")
        if id is None or not isinstance(text, str):
            raise DataFileError(f"{file}, line {line}: a query has `_id` and `text`; this row has {', '.join(row)}.")
        found[str(id)] = text
    return found


def read_judgements(file: Path) -> Judgements:
    """Which documents answer which query."""
    found: Judgements = {}
    for line, row in read_rows(file):
        try:
            found.setdefault(str(row["query-id"]), {})[str(row["corpus-id"])] = float(row["score"])
        except (KeyError, TypeError, ValueError):
            raise DataFileError(f"{file}, line {line}: a row has query-id, corpus-id and a number as score.") from None
    return found


def _rankings(
    index: Index, queries: Mapping[str, str], ids: Sequence[str], way: str, judged: Judgements
) -> dict[str, list[Found]]:
    ranked = index.rank_one_way([queries[id] for id in ids], _DEPTH, way)
    return {
        id: [one for one in found if one.document != id or id in judged[id]]  # a query does not find itself
        for id, found in zip(ids, ranked, strict=True)
    }


def _mean(values: Mapping[str, float], ids: Sequence[str]) -> float:
    return 100 * sum(values[id] for id in ids) / len(ids) if ids else math.nan
