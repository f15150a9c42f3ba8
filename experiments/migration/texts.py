"""Texts of the study of migration, and their vectors: `python experiments/migration/texts.py DATA ENCODER...`.

Vectors are kept in the cache of evaluations, so that a stopped run goes on and `evaluate.py` finds them. ENCODER is
what `decoder2vec.load_encoder` takes, or "untrained": the mean of smollm2-135m's last layer.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import decoder2vec as d2v
from decoder2vec.evaluation.vector_cache import VectorCache, token_counter
from decoder2vec.search.store import encode_texts
from decoder2vec.search.tuning import read_qrels, read_queries
from decoder2vec.text.files import read_rows

DOCUMENTS = 12_000


@dataclass
class Collection:
    """Documents and queries; `relevant` has the ids of documents that answer a query, where they are known."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, set[str]] = field(default_factory=dict)


def read_quora(data: Path, count: int = DOCUMENTS) -> Collection:
    """Return `count` questions of quora-mini: all that are judged, and others drawn at random."""
    folder = data / "retrieval" / "quora-mini"
    queries, qrels = read_queries(folder / "queries.jsonl.gz"), read_qrels(folder / "qrels-test.tsv")
    corpus = {str(row["_id"]): str(row["text"]) for _, row in read_rows(folder / "corpus.jsonl.gz")}
    relevant = {id: {document for document, score in qrels[id].items() if score > 0} for id in queries}
    needed = dict.fromkeys(document for documents in relevant.values() for document in sorted(documents))
    # a query is a document of the corpus, too: it is left out, as it would be the first of its own ranking
    others = sorted(corpus.keys() - needed.keys() - queries.keys())
    ids = [*needed, *random.Random(0).sample(others, DOCUMENTS - len(needed))][:count]
    return Collection({id: corpus[id] for id in ids}, queries, relevant)


def load(name: str) -> Any:
    """Return the encoder of that name."""
    if name == "untrained":
        return d2v.load_encoder("smollm2-135m", pooling="mean", template="plain")
    return d2v.load_encoder(name)


class Vectors:
    """Vectors of one encoder for documents and queries, from the cache on disk where they are there."""

    def __init__(self, name: str) -> None:
        self.encoder = load(name)
        self._caches = {
            role: VectorCache(
                lambda texts, role=role: encode_texts(self.encoder, texts, role),  # type: ignore[misc]
                f"migration-{role}-{self.encoder.fingerprint}",
                token_counter(self.encoder),
            )
            for role in ("document", "query")
        }

    def of(self, role: str, texts: list[str]) -> NDArray[np.float32]:
        """[texts, dim] vectors of documents or queries."""
        self._caches[role].fill(texts)
        return np.asarray(self._caches[role].read(texts), np.float32)


if __name__ == "__main__":
    collection = read_quora(Path(sys.argv[1]))
    for encoder in sys.argv[2:]:
        vectors = Vectors(encoder)
        for role, texts in (("query", collection.queries), ("document", collection.documents)):
            print(encoder, role, vectors.of(role, list(texts.values())).shape, flush=True)
