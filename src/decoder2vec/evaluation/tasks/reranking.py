"""Reranking: rank a few candidates for every query. Mean average precision, as in MTEB.

Candidates come from a file (query, positive, negative). For a retrieval task they are the relevant documents and thirty
others from a fixed random sample. Random candidates are easy: they separate weak encoders, not strong ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from decoder2vec.activations.store import text_key
from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.retrieval import ranking_result, read_beir
from decoder2vec.evaluation.tasks.task import (
    SEED,
    Role,
    Task,
    TaskResult,
    TaskVectors,
    evenly_spaced,
    limit_flags,
    unique,
)
from decoder2vec.maths.ranking import document_ranks, ranking_scores
from decoder2vec.text.files import read_rows

N_NEGATIVES = 30


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """Queries, each with relevant texts (positives) and irrelevant ones (negatives)."""

    kind: ClassVar[str] = "reranking"
    queries: list[str]
    positives: list[list[str]]
    negatives: list[list[str]]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> Reranking:
        """Read a JSONL file with the fields query, positive and negative; the last two are lists of texts."""
        rows, skipped, conflicting = [], 0, 0
        for line, row in read_rows(file):
            query: Any = row.get("query")
            positive: Any = row.get("positive")
            negative: Any = row.get("negative")
            if not isinstance(query, str) or not _is_text_list(positive) or not _is_text_list(negative):
                raise DataFileError(
                    f"{file}, line {line}: query must be a text, positive and negative must be lists of texts."
                )
            negatives = [text for text in negative if text not in set(positive)]
            conflicting += len(negative) - len(negatives)
            skipped += not (positive and negatives)
            if positive and negatives:
                rows.append((query, unique(positive), unique(negatives)))
        if not rows:
            raise DataFileError(f"{file}: no query has both a positive and a negative.")
        flags = [f"{skipped} queries without a positive or without a negative left out"] if skipped else []
        flags += [f"{conflicting} negatives that are positives too left out"] if conflicting else []
        return cls._from_rows(name, evenly_spaced(rows, limit), (*flags, *limit_flags(limit, len(rows), "queries")))

    @classmethod
    def from_retrieval(cls, folder: Path, name: str, split: str = "test", limit: int | None = None) -> Reranking:
        """The queries of a retrieval task, each with its relevant documents and random others as candidates."""
        data = read_beir(folder, split, limit)
        ids, rows, skipped = sorted(data.documents), [], 0
        for query, gains in data.relevant.items():
            positives = [data.documents[document] for document in gains if document in data.documents]
            rng = random.Random(f"{SEED}-{query}")
            sample = rng.sample(ids, min(len(ids), N_NEGATIVES + len(gains) + 1))
            others = [document for document in sample if document not in gains and document != data.own_document(query)]
            negatives = unique([data.documents[document] for document in others[:N_NEGATIVES]])
            negatives = [text for text in negatives if text not in set(positives)]
            skipped += not (positives and negatives)
            if positives and negatives:
                rows.append((data.queries[query], unique(positives), negatives))
        if not rows:
            raise DataFileError(f"{folder}: no query has both a relevant document and another one.")
        flags = [f"{skipped} queries without a candidate left out"] if skipped else []
        return cls._from_rows(name, rows, (*data.flags, *flags))

    @classmethod
    def _from_rows(cls, name: str, rows: list[tuple[str, list[str], list[str]]], flags: tuple[str, ...]) -> Reranking:
        queries, positives, negatives = (list(column) for column in zip(*rows, strict=True))
        return cls(name=name, queries=queries, positives=positives, negatives=negatives, flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """Queries, and candidates as documents."""
        return {"query": unique(self.queries), "document": unique(*self.positives, *self.negatives)}

    def gold_pairs(self) -> tuple[list[str], list[str]]:
        """Every query with each of its positives."""
        pairs = [(query, text) for query, texts in zip(self.queries, self.positives, strict=True) for text in texts]
        return [query for query, _ in pairs], [text for _, text in pairs]

    def score(self, vectors: TaskVectors) -> TaskResult:
        """Mean average precision (main score) and the other ranking metrics."""
        rows = []
        for query, positives, negatives in zip(self.queries, self.positives, self.negatives, strict=True):
            # ties are broken by the hash of the text, which does not depend on the labels
            candidates = sorted((*positives, *negatives), key=text_key)
            scores = vectors.score_matrix([query], candidates)[0]
            relevant_texts = set(positives)
            relevant = [index for index, text in enumerate(candidates) if text in relevant_texts]
            gains = np.ones(len(relevant))
            rows.append(ranking_scores(document_ranks(scores, relevant), gains, gains, (1, 10)))
        return ranking_result(rows, "map")


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
