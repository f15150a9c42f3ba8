"""Reranking: of a few candidates, which belong to the query? Mean average precision, as in MTEB.

Candidates come from a file (query, positive, negative) or, for a retrieval set, are the relevant documents and thirty
others that are drawn once and for all. Drawn at random they are easy: this tells weak encoders apart, not strong ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from decoder2vec.activations.store import text_key
from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks.retrieval import ranking_outcome, read_beir
from decoder2vec.evaluation.tasks.task import SEED, Outcome, Role, Task, Vectors, different, limited, spread
from decoder2vec.maths.ranking import document_ranks, ranking_scores
from decoder2vec.text.files import read_rows

NEGATIVES = 30


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """Queries, each with texts that belong to it and texts that do not."""

    kind: ClassVar[str] = "reranking"
    queries: list[str]
    positives: list[list[str]]
    negatives: list[list[str]]

    @classmethod
    def read(cls, file: Path, name: str, limit: int | None = None) -> Reranking:
        """From a JSONL file of query, positive and negative; the last two are lists of texts."""
        rows, left_out, both = [], 0, 0
        for line, row in read_rows(file):
            query: Any = row.get("query")
            positive: Any = row.get("positive")
            negative: Any = row.get("negative")
            if not isinstance(query, str) or not _are_texts(positive) or not _are_texts(negative):
                raise DataFileError(
                    f"{file}, line {line}: query, positive and negative are a text and two lists of texts."
                )
            clean = [text for text in negative if text not in set(positive)]
            both += len(negative) - len(clean)
            left_out += not (positive and clean)
            if positive and clean:
                rows.append((query, different(positive), different(clean)))
        if not rows:
            raise DataFileError(f"{file}: no query has both a positive and a negative.")
        flags = [f"{left_out} queries without a positive or without a negative left out"] if left_out else []
        flags += [f"{both} negatives that are positives too left out"] if both else []
        return cls._of(name, spread(rows, limit), (*flags, *limited(limit, len(rows), "queries")))

    @classmethod
    def from_retrieval(cls, folder: Path, name: str, part: str = "test", limit: int | None = None) -> Reranking:
        """The same queries as the retrieval task of that folder, with candidates of their own."""
        judged = read_beir(folder, part, limit)
        names, rows, left_out = sorted(judged.documents), [], 0
        for query, gains in judged.relevant.items():
            positives = [judged.documents[each] for each in gains if each in judged.documents]
            rng = random.Random(f"{SEED}-{query}")
            drawn = rng.sample(names, min(len(names), NEGATIVES + len(gains) + 1))
            others = [each for each in drawn if each not in gains and each != judged.own(query)]
            negatives = different([judged.documents[each] for each in others[:NEGATIVES]])
            negatives = [text for text in negatives if text not in set(positives)]
            left_out += not (positives and negatives)
            if positives and negatives:
                rows.append((judged.queries[query], different(positives), negatives))
        if not rows:
            raise DataFileError(f"{folder}: no query has both a relevant document and another one.")
        flags = [f"{left_out} queries without a candidate left out"] if left_out else []
        return cls._of(name, rows, (*judged.flags, *flags))

    @classmethod
    def _of(cls, name: str, rows: list[tuple[str, list[str], list[str]]], flags: tuple[str, ...]) -> Reranking:
        queries, positives, negatives = (list(column) for column in zip(*rows, strict=True))
        return cls(name=name, queries=queries, positives=positives, negatives=negatives, flags=flags)

    def texts(self) -> dict[Role, list[str]]:
        """Queries, and candidates as documents."""
        return {"query": different(self.queries), "document": different(*self.positives, *self.negatives)}

    def pairs(self) -> tuple[list[str], list[str]]:
        """Each query with each of its positives."""
        both = [(query, text) for query, texts in zip(self.queries, self.positives, strict=True) for text in texts]
        return [query for query, _ in both], [text for _, text in both]

    def score(self, vectors: Vectors) -> Outcome:
        """Mean average precision is the headline."""
        rows = []
        for query, positives, negatives in zip(self.queries, self.positives, self.negatives, strict=True):
            candidates = sorted((*positives, *negatives), key=text_key)  # ties fall in an order that knows no label
            scores = vectors.scores([query], candidates)[0]
            good = set(positives)
            places = [at for at, text in enumerate(candidates) if text in good]
            gains = np.ones(len(places))
            rows.append(ranking_scores(document_ranks(scores, places), gains, gains, (1, 10)))
        return ranking_outcome(rows, "map")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
