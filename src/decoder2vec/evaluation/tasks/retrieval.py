"""Retrieval: rank a corpus for every query, from a folder in BEIR's layout.

The layout is corpus.jsonl, queries.jsonl and qrels-test.tsv (or qrels/test.tsv), each also gzipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.errors import DataFileError, unknown_name
from decoder2vec.evaluation.similarity import query_batch_size
from decoder2vec.evaluation.tasks.task import (
    Role,
    Task,
    TaskResult,
    TaskVectors,
    evenly_spaced,
    limit_flags,
    unique,
)
from decoder2vec.maths.metrics import mean_interval
from decoder2vec.maths.ranking import document_ranks, ranking_scores
from decoder2vec.text.files import read_rows
from decoder2vec.text.qrels import read_qrels

SPLITS = ("dev", "test", "all")
_OTHER_DOCUMENTS_PER_QUERY = 20
"""With a limit the corpus shrinks to the relevant documents and this many others for each query."""


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Queries, a corpus, and the relevant documents of each query."""

    kind: ClassVar[str] = "retrieval"
    documents: list[str]
    """Sorted by descending id: the order in which trec_eval breaks ties."""
    queries: list[str]
    relevant: list[dict[int, int]]
    """For each query: document index -> gain. A negative index is a document that is not in the corpus."""
    own_document: list[int]
    """For each query the index of the document that is the query itself, which is not ranked; -1: none."""

    @classmethod
    def read(cls, folder: Path, name: str, split: str = "test", limit: int | None = None) -> Retrieval:
        """Read a folder in BEIR's layout."""
        data = read_beir(folder, split, limit)
        ids = sorted(data.documents, reverse=True)
        index_of = {document: index for index, document in enumerate(ids)}
        missing = {document for gains in data.relevant.values() for document in gains if document not in index_of}
        index_of |= {document: -1 - number for number, document in enumerate(sorted(missing))}
        own_ids = [data.own_document(query) for query in data.queries]
        return cls(
            name=name,
            documents=[data.documents[document] for document in ids],
            queries=list(data.queries.values()),
            relevant=[{index_of[id_]: gain for id_, gain in gains.items()} for gains in data.relevant.values()],
            own_document=[-1 if document is None else index_of[document] for document in own_ids],
            flags=tuple(data.flags),
        )

    def texts(self) -> dict[Role, list[str]]:
        """Queries and documents."""
        return {"query": unique(self.queries), "document": unique(self.documents)}

    def gold_pairs(self) -> tuple[list[str], list[str]]:
        """Every query with each of its relevant documents."""
        pairs = [
            (query, index)
            for query, gains in zip(self.queries, self.relevant, strict=True)
            for index in gains
            if index >= 0
        ]
        return [query for query, _ in pairs], [self.documents[index] for _, index in pairs]

    def score(self, vectors: TaskVectors) -> TaskResult:
        """nDCG@10 (main score) and the other ranking metrics, the means over queries."""
        step = query_batch_size(len(self.documents))
        rows = []
        for start in range(0, len(self.queries), step):
            matrix = vectors.score_matrix(self.queries[start : start + step], self.documents)
            rows += [self._score_query(start + row, scores) for row, scores in enumerate(matrix)]
        return ranking_result(rows, "ndcg@10")

    def digest(self) -> str:
        """As in `Task`, with the field name of version 0.1.0, so that results of that version stay valid."""
        fields = dict(vars(self))
        fields["own"] = fields.pop("own_document")
        return fingerprint(self.kind, fields)

    def _score_query(self, query: int, scores: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> dict[str, float]:
        if self.own_document[query] >= 0:
            scores[self.own_document[query]] = -np.inf
        gains = self.relevant[query]
        in_corpus = [index for index in gains if index >= 0]
        corpus_gains = np.array([gains[index] for index in in_corpus], np.float64)
        return ranking_scores(
            document_ranks(scores, in_corpus), corpus_gains, np.array(list(gains.values()), np.float64)
        )


def ranking_result(rows: list[dict[str, float]], metric: str) -> TaskResult:
    """The means over queries of every ranking metric, in points."""
    scores = {name: round(100 * float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
    values = [100 * row[metric] for row in rows]
    low, high = mean_interval(np.array(values))
    return TaskResult(metric, scores, (round(low, 4), round(high, 4)), {"values": values})


@dataclass
class RetrievalData:
    """Queries, documents and relevance judgements by id."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    """Query -> document -> gain, gains above 0 only. A document that is not in the corpus counts as never found."""
    flags: list[str] = field(default_factory=list)

    def own_document(self, query: str) -> str | None:
        """The id of the document that is the query itself (same id and text), which must not be counted as found."""
        return query if self.documents.get(query) == self.queries[query] else None


def read_beir(folder: Path, split: str = "test", limit: int | None = None) -> RetrievalData:
    """Read a folder in BEIR's layout.

    Args:
        folder: The folder with corpus, queries and qrels.
        split: test, dev or all. There are no qrels for tuning, so queries with sha1(id) mod 10 < 3 form the dev split.
        limit: At most this many queries, with a corpus that is smaller in proportion.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    documents = _read_texts(_find_file(folder, "corpus.jsonl"))
    queries = _read_texts(_find_file(folder, "queries.jsonl"))
    relevant, flags = _read_qrels(_find_file(folder, "qrels-test.tsv", "qrels/test.tsv"), documents, queries)
    data = RetrievalData(documents, queries, relevant, flags)
    for query in queries.keys() & relevant.keys():
        relevant[query].pop(data.own_document(query) or "", None)
    in_split = [query for query in queries if split == "all" or is_dev_query(query) == (split == "dev")]
    judged = [query for query in in_split if relevant.get(query)]
    if len(judged) < len(in_split):
        flags.append(f"{len(in_split) - len(judged)} queries without a relevant document left out")
    if not judged:
        raise DataFileError(f"{folder}: no query of the split {split!r} has a relevant document in the qrels.")
    flags.extend(limit_flags(limit, len(judged), "queries"))
    chosen = evenly_spaced(judged, limit)
    data.queries = {query: queries[query] for query in chosen}
    data.relevant = {query: relevant[query] for query in chosen}
    if limit is not None:
        _limit_corpus(data, limit * _OTHER_DOCUMENTS_PER_QUERY)
    if in_corpus := sum(data.own_document(query) is not None for query in chosen):
        flags.append(f"{in_corpus} queries stand in the corpus themselves and are not ranked for themselves")
    return data


def read_beir_texts(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read the queries and the documents of a folder in BEIR's layout by id, whether they are judged or not."""
    return _read_texts(_find_file(folder, "queries.jsonl")), _read_texts(_find_file(folder, "corpus.jsonl"))


def is_dev_query(query: str) -> bool:
    """Whether the query with this id belongs to the dev split."""
    return int(hashlib.sha1(query.encode()).hexdigest(), 16) % 10 < 3


def _limit_corpus(data: RetrievalData, others: int) -> None:
    """Keep the relevant documents, the queries' own documents and `others` more."""
    needed = {document for gains in data.relevant.values() for document in gains} | set(data.queries)
    kept_ids = needed | set(evenly_spaced([document for document in data.documents if document not in needed], others))
    data.flags.extend(limit_flags(len(kept_ids & data.documents.keys()), len(data.documents), "documents"))
    data.documents = {document: text for document, text in data.documents.items() if document in kept_ids}


def _find_file(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise DataFileError(f"{folder} has no {names[0]} (nor {names[0]}.gz); BEIR's layout is corpus, queries and qrels.")


def _read_texts(file: Path) -> dict[str, str]:
    """Id -> title and text."""
    texts: dict[str, str] = {}
    for line, row in read_rows(file):
        id_, text, title = row.get("_id"), row.get("text"), row.get("title") or ""
        if not isinstance(id_, str | int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataFileError(f"{file}, line {line}: _id and text are required, and title must be a text if present.")
        if str(id_) in texts:
            raise DataFileError(f"{file}, line {line}: the id {id_!r} is a duplicate; ids must be unique.")
        texts[str(id_)] = f"{title} {text}".strip()
    if not texts:
        raise DataFileError(f"{file} has no usable row.")
    return texts


def _read_qrels(
    file: Path, documents: Iterable[str], queries: Iterable[str]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Query -> document -> gain above 0, and flags for ids that are not in the corpus or among the queries."""
    document_ids, query_ids = set(documents), set(queries)
    judgements = read_qrels(file, whole=True)
    unknown_documents = sum(document not in document_ids for gains in judgements.values() for document in gains)
    unknown_queries = sum(len(gains) for query, gains in judgements.items() if query not in query_ids)
    flags = (
        [f"{unknown_documents} judged documents are not in the corpus and count as never found"]
        if unknown_documents
        else []
    )
    flags += [f"{unknown_queries} judgements are of queries that do not exist"] if unknown_queries else []
    positive = {
        query: {document: int(gain) for document, gain in gains.items() if gain > 0}
        for query, gains in judgements.items()
    }
    return positive, flags
