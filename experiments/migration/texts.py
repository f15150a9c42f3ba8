"""Texts of the study of migration, and their vectors: `python experiments/migration/texts.py SET DATA ENCODER...`.

Vectors are kept in the cache of evaluations, so that a stopped run goes on and `evaluate.py` finds them. ENCODER is
what `decoder2vec.load_encoder` takes, "untrained" (the mean of smollm2-135m's last layer) or "general-24" (the built-in
encoder read at layer 24 of 30).
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace
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
POOL_QUERIES = 1000
MAX_POOL_WORDS = 24


@dataclass
class Collection:
    """Documents and queries; `relevant` has the ids of documents that answer a query, where they are known."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, set[str]] = field(default_factory=dict)


def read_collection(name: str, data: Path) -> Collection:
    """Return "quora" (12,000 questions, with judgements) or "pool" (12,000 short texts of ten sources, without)."""
    return {"quora": _read_quora, "pool": _read_pool}[name](data)


def _read_quora(data: Path) -> Collection:
    folder = data / "retrieval" / "quora-mini"
    queries, qrels = read_queries(folder / "queries.jsonl.gz"), read_qrels(folder / "qrels-test.tsv")
    corpus = {str(row["_id"]): str(row["text"]) for _, row in read_rows(folder / "corpus.jsonl.gz")}
    relevant = {id: {document for document, score in qrels[id].items() if score > 0} for id in queries}
    needed = dict.fromkeys(document for documents in relevant.values() for document in sorted(documents))
    # a query is a document of the corpus, too: it is left out, as it would be the first of its own ranking
    others = sorted(corpus.keys() - needed.keys() - queries.keys())
    ids = [*needed, *random.Random(0).sample(others, DOCUMENTS - len(needed))]
    return Collection({id: corpus[id] for id in ids}, queries, relevant)


def _read_pool(data: Path) -> Collection:
    rows = (str(row["text"]) for _, row in read_rows(data / "pool" / "texts-1.tsv.gz"))
    texts: list[str] = []
    for text in rows:
        if len(text.split()) <= MAX_POOL_WORDS:
            texts.append(text)
        if len(texts) == DOCUMENTS + POOL_QUERIES:
            break
    ids = [str(number) for number in range(len(texts))]
    return Collection(
        dict(zip(ids[:DOCUMENTS], texts[:DOCUMENTS], strict=True)),
        dict(zip(ids[DOCUMENTS:], texts[DOCUMENTS:], strict=True)),
    )


def load(name: str) -> Any:
    """Return the encoder of that name."""
    if name == "untrained":
        return d2v.load_encoder("smollm2-135m", pooling="mean", template="plain")
    if name == "general-24":
        general = d2v.Encoder.from_pretrained("smollm2-135m-general")
        return d2v.Encoder(general.backbone, replace(general.spec, readings=(d2v.Reading(24, "mean"),)))
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
    collection = read_collection(sys.argv[1], Path(sys.argv[2]))
    for encoder in sys.argv[3:]:
        vectors = Vectors(encoder)
        for role, texts in (("query", collection.queries), ("document", collection.documents)):
            print(sys.argv[1], encoder, role, vectors.of(role, list(texts.values())).shape, flush=True)
