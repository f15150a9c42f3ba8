"""Pairs per second of a reranker, against a plain loop over the same prompts in padded batches.

The plain loop takes 16 pairs at a time with an attention mask, in the order given, or by length in characters as the
CrossEncoder of sentence-transformers does it. `Reranker` plans batches by tokens; a document of several queries is
computed once. All give the same scores. Methods run in alternation and the fastest run of each counts, in seconds of
CPU time on one thread.

Run: python bench/reranking.py [model]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from corpus import sentences, texts_of_length, texts_of_mixed_lengths
from decoder2vec import Backbone, Reranker
from decoder2vec.activations.shared_beginning import SharedBeginning
from decoder2vec.reranker import RerankerSpec
from decoder2vec.text.batches import collate
from measure import report

BATCH = 16
ROUNDS = 2
MAX_WORDS = 200
WORKLOADS = {
    "1 query, 32 documents of mixed lengths": (1, 32, None),
    "2 queries, 16 documents of mixed lengths": (2, 16, None),
    "8 queries, 4 documents of mixed lengths": (8, 4, None),
    "8 queries, 4 documents of 150 words": (8, 4, 150),
}
"""Every query with every document: numbers of both, and the words of a document."""


@torch.inference_mode()
def plain_loop(reranker: Reranker, queries: list[str], documents: list[str], *, by_length: bool) -> NDArray[np.float32]:
    """Scores of pairs in batches of 16."""
    rows = list(range(len(queries)))
    if by_length:
        rows.sort(key=lambda row: -len(queries[row]) - len(documents[row]))
    scores = np.empty(len(rows), np.float32)
    for begin in range(0, len(rows), BATCH):
        chosen = rows[begin : begin + BATCH]
        prompts, _ = reranker._tokeniser([queries[row] for row in chosen], [documents[row] for row in chosen])
        batch = collate(prompts, reranker.backbone.pad_token_id)
        states = reranker.backbone.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False)
        last = states.last_hidden_state[torch.arange(len(chosen)), batch.end - 1].float()
        scores[chosen] = last @ reranker.head
    return scores


def alternate(methods: dict[str, Callable[[], NDArray[np.float32]]]) -> dict[str, float]:
    """CPU seconds of the fastest run of each method; all must give the same scores."""
    best = dict.fromkeys(methods, float("inf"))
    expected = None
    for _ in range(ROUNDS):
        for name, job in methods.items():
            started = time.process_time()
            scores = job()
            best[name] = min(best[name], time.process_time() - started)
            expected = scores if expected is None else expected
            assert np.abs(scores - expected).max() < 1e-3 * np.abs(expected).max()
    return best


def main() -> None:
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(name, device="cpu", dtype="float32")
    head = torch.randn(backbone.dim, generator=torch.Generator().manual_seed(0))
    reranker = Reranker(backbone, RerankerSpec(name, "linear"), head)
    rows = []
    for workload, (n_queries, n_documents, words) in WORKLOADS.items():
        texts = texts_of_length(n_documents, words) if words else texts_of_mixed_lengths(n_documents, MAX_WORDS)
        queries = [query for query in sentences(n_queries) for _ in texts]
        documents = texts * n_queries

        def ours(*, shares: bool, queries: list[str] = queries, documents: list[str] = documents):
            off = patch.object(SharedBeginning, "groups", lambda *_: [])
            with nullcontext() if shares else off:
                return reranker.score_pairs(queries, documents)

        seconds = alternate(
            {
                "plain loop": lambda q=queries, d=documents: plain_loop(reranker, q, d, by_length=False),
                "loop by length": lambda q=queries, d=documents: plain_loop(reranker, q, d, by_length=True),
                "sorted batches": lambda: ours(shares=False),
                "shared documents": lambda: ours(shares=True),
            }
        )
        plain = seconds["plain loop"]
        rows += [(workload, key, f"{len(queries) / s:.1f}", f"{plain / s:.2f}x") for key, s in seconds.items()]
    columns = ("pairs", "method", "pairs per CPU second of one thread", "against the plain loop")
    report("reranking", columns, rows, model=name, dtype="float32", batch=BATCH, max_words=MAX_WORDS)


if __name__ == "__main__":
    main()
