"""Retrieval: does the encoder rank the relevant documents of a whole corpus first? Every similarity is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.evaluation.similarity import queries_at_once
from decoder2vec.evaluation.tasks.beir import read_beir
from decoder2vec.evaluation.tasks.task import Outcome, Role, Task, Vectors, different
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.maths.ranking import ranking_scores, ranks_of


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Queries, a corpus, and the relevant documents."""

    kind: ClassVar[str] = "retrieval"
    documents: list[str]
    """From the last name to the first: the order in which trec_eval breaks ties."""
    queries: list[str]
    relevant: list[dict[int, int]]
    """For each query the gains by place of the document; a negative place is a document that is not there."""
    own: list[int]
    """For each query the place of its own document, which is not ranked; -1: it has none."""

    @classmethod
    def read(cls, folder: Path, name: str, part: str = "test", limit: int | None = None) -> Retrieval:
        """From a folder in BEIR's layout."""
        judged = read_beir(folder, part, limit)
        names = sorted(judged.documents, reverse=True)
        place = {document: at for at, document in enumerate(names)}
        absent = {document for gains in judged.relevant.values() for document in gains if document not in place}
        place |= {document: -1 - number for number, document in enumerate(sorted(absent))}
        return cls(
            name=name,
            documents=[judged.documents[document] for document in names],
            queries=list(judged.queries.values()),
            relevant=[{place[name]: gain for name, gain in gains.items()} for gains in judged.relevant.values()],
            own=[-1 if (own := judged.own(query)) is None else place[own] for query in judged.queries],
            flags=tuple(judged.flags),
        )

    def texts(self) -> dict[Role, list[str]]:
        """Queries and documents."""
        return {"query": different(self.queries), "document": different(self.documents)}

    def pairs(self) -> tuple[list[str], list[str]]:
        """Each query with each of its relevant documents."""
        both = [
            (query, at) for query, gains in zip(self.queries, self.relevant, strict=True) for at in gains if at >= 0
        ]
        return [query for query, _ in both], [self.documents[at] for _, at in both]

    def score(self, vectors: Vectors) -> Outcome:
        """Normalised discounted gain of the first ten is the headline."""
        step = queries_at_once(len(self.documents))
        rows = []
        for begin in range(0, len(self.queries), step):
            table = vectors.scores(self.queries[begin : begin + step], self.documents)
            rows += [self._query(begin + row, scores) for row, scores in enumerate(table)]
        return ranking_outcome(rows, "ndcg@10")

    def _query(self, number: int, scores: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> dict[str, float]:
        if self.own[number] >= 0:
            scores[self.own[number]] = -np.inf
        gains = self.relevant[number]
        there = [at for at in gains if at >= 0]
        found = np.array([gains[at] for at in there], np.float64)
        return ranking_scores(ranks_of(scores, there), found, np.array(list(gains.values()), np.float64))


def ranking_outcome(rows: list[dict[str, float]], metric: str) -> Outcome:
    """The means over queries of every measure, in points."""
    scores = {name: round(100 * float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
    values = [100 * row[metric] for row in rows]
    low, high = mean_interval(np.array(values))
    return Outcome(metric, scores, (round(low, 4), round(high, 4)), {"values": values})
