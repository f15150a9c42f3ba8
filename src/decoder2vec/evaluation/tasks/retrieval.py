"""A folder in BEIR's layout: corpus.jsonl, queries.jsonl and qrels-test.tsv (or qrels/test.tsv), each also gzipped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.errors import DataFileError, unknown_name
from decoder2vec.evaluation.similarity import queries_at_once
from decoder2vec.evaluation.tasks.task import Outcome, Role, Task, Vectors, different, limited, spread
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.maths.ranking import document_ranks, ranking_scores
from decoder2vec.text.files import read_rows

PARTS = ("dev", "test", "all")
_OTHERS_PER_QUERY = 20
"""Under a limit the corpus shrinks too: to the relevant documents and so many others for each query."""


@dataclass
class Judged:
    """Queries, documents, and how relevant some documents are to some queries."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    """Gains above 0 by query and document; a document that is not there counts as never found."""
    flags: list[str] = field(default_factory=list)

    def own(self, query: str) -> str | None:
        """The query's own document: the same name and the same text. To find itself is no merit."""
        return query if self.documents.get(query) == self.queries[query] else None


def read_beir(folder: Path, part: str = "test", limit: int | None = None) -> Judged:
    """Read a folder. There are no qrels to tune on, so the queries with sha1(id) mod 10 < 3 are kept apart as `dev`."""
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    documents = _texts(_file(folder, "corpus.jsonl"))
    queries = _texts(_file(folder, "queries.jsonl"))
    relevant, flags = _judgements(_file(folder, "qrels-test.tsv", "qrels/test.tsv"), documents, queries)
    judged = Judged(documents, queries, relevant, flags)
    for name in queries.keys() & relevant.keys():
        relevant[name].pop(judged.own(name) or "", None)
    mine = {name: text for name, text in queries.items() if part == "all" or is_dev(name) == (part == "dev")}
    found = [name for name in mine if relevant.get(name)]
    if len(found) < len(mine):
        flags.append(f"{len(mine) - len(found)} queries without a relevant document left out")
    if not found:
        raise DataFileError(f"{folder}: no query of the part {part!r} has a relevant document in the qrels.")
    flags.extend(limited(limit, len(found), "queries"))
    found = spread(found, limit)
    judged.queries = {name: queries[name] for name in found}
    judged.relevant = {name: relevant[name] for name in found}
    if limit is not None:
        _shrink(judged, limit * _OTHERS_PER_QUERY)
    if own := sum(judged.own(name) is not None for name in found):
        flags.append(f"{own} queries stand in the corpus themselves and are not ranked for themselves")
    return judged


def is_dev(query: str) -> bool:
    """Is this query one to tune on?"""
    return int(hashlib.sha1(query.encode()).hexdigest(), 16) % 10 < 3


def _shrink(judged: Judged, others: int) -> None:
    wanted = {name for names in judged.relevant.values() for name in names} | set(judged.queries)
    kept = wanted | set(spread([name for name in judged.documents if name not in wanted], others))
    judged.flags.extend(limited(len(kept & judged.documents.keys()), len(judged.documents), "documents"))
    judged.documents = {name: text for name, text in judged.documents.items() if name in kept}


def _file(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise DataFileError(f"{folder} has no {names[0]} (nor {names[0]}.gz); BEIR's layout is corpus, queries and qrels.")


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, the title, if there is one, before the text."""
    found: dict[str, str] = {}
    for line, row in read_rows(file):
        name, text, title = row.get("_id"), row.get("text"), row.get("title") or ""
        if not isinstance(name, str | int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataFileError(
                f"{file}, line {line}: _id and text are needed, and title must be a text if it is there."
            )
        if str(name) in found:
            raise DataFileError(f"{file}, line {line}: the id {name!r} was there before; ids must differ.")
        found[str(name)] = f"{title} {text}".strip()
    if not found:
        raise DataFileError(f"{file} holds no usable row.")
    return found


def _judgements(
    file: Path, documents: Iterable[str], queries: Iterable[str]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Gains above 0 by query and document, and flags for names that are nowhere."""
    known, asked = set(documents), set(queries)
    found: dict[str, dict[str, int]] = {}
    absent = strange = 0
    for line, row in read_rows(file):
        try:
            query, document, gain = str(row["query-id"]), str(row["corpus-id"]), int(row["score"])
        except (KeyError, TypeError, ValueError):
            raise DataFileError(f"{file}, line {line}: query-id, corpus-id and a whole score are needed.") from None
        if found.setdefault(query, {}).setdefault(document, gain) != gain:
            raise DataFileError(f"{file}, line {line}: {query} and {document} were judged before, and differently.")
        absent += document not in known
        strange += query not in asked
    flags = [f"{absent} judged documents are not in the corpus and count as never found"] if absent else []
    flags += [f"{strange} judgements are of queries that do not exist"] if strange else []
    return {query: {name: gain for name, gain in row.items() if gain > 0} for query, row in found.items()}, flags


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
        return ranking_scores(document_ranks(scores, there), found, np.array(list(gains.values()), np.float64))


def ranking_outcome(rows: list[dict[str, float]], metric: str) -> Outcome:
    """The means over queries of every measure, in points."""
    scores = {name: round(100 * float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
    values = [100 * row[metric] for row in rows]
    low, high = mean_interval(np.array(values))
    return Outcome(metric, scores, (round(low, 4), round(high, 4)), {"values": values})
