"""Exact searches per second over 100,000 vectors of 576 dimensions, against numpy and LanceDB.

Run: python bench/exact_search.py [vectors] [dim]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from decoder2vec.search.lance_store import LanceStore
from decoder2vec.search.ranking import DenseSearch
from decoder2vec.search.store import Chunk
from measure import best_seconds, gemm_flops, report

TOP_K, BATCH, SINGLE_QUERIES = 10, 256, 20


def main() -> None:
    n_vectors, dim = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (100_000, 576)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((n_vectors, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = rng.standard_normal((BATCH, dim), dtype=np.float32)
    unit_queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    keys = [f"d{row}#0" for row in range(n_vectors)]
    with tempfile.TemporaryDirectory() as folder:
        store = LanceStore(Path(folder))
        store.create("bench", dim)
        chunks = [Chunk(key[:-2], 0, 1, "", {}, "") for key in keys]
        store.write_chunks(chunks, vectors, replace=False)
        load_seconds = best_seconds(lambda: DenseSearch(*store.read_vectors(), "cosine"), 1)
        ours = DenseSearch(*store.read_vectors(), "cosine")

        def search_numpy(query: int) -> np.ndarray:
            scores = vectors @ unit_queries[query]
            top = np.argpartition(-scores, TOP_K)[:TOP_K]
            return top[np.argsort(-scores[top])]

        hits = ours.search(queries[:1], TOP_K)[0]
        assert [key for key, _ in hits] == [keys[row] for row in search_numpy(0)]
        methods = {
            "exact search, one query": (SINGLE_QUERIES, lambda n: ours.search(queries[n : n + 1], TOP_K)),
            "numpy, one query": (SINGLE_QUERIES, search_numpy),
            "LanceDB without an index, one query": (
                3,
                lambda n: store.nearest(queries[n], TOP_K, "cosine", None, exact=True),
            ),
        }
        table = []
        for name, (count, search) in methods.items():
            seconds = best_seconds(lambda count=count, search=search: [search(n) for n in range(count)], 5)
            table.append((name, f"{count / seconds:.1f}"))
        seconds = best_seconds(lambda: ours.search(queries, TOP_K), 10)
        table.insert(1, (f"exact search, {BATCH} queries at once", f"{BATCH / seconds:.1f}"))
    started = time.process_time()
    ours.search(queries, TOP_K)
    cpu_seconds = time.process_time() - started
    gemm_share = 2 * n_vectors * dim * BATCH / seconds / gemm_flops(torch.device("cpu"), torch.float32)
    facts = {
        "seconds_to_load": round(load_seconds, 2),
        "batch_share_of_gemm_rate": f"{100 * gemm_share:.0f} %",
        "batch_queries_per_cpu_second": round(BATCH / cpu_seconds, 1),  # of one core; other processes do not count
    }
    report("exact_search", ("way", "queries/s"), table, vectors=n_vectors, dim=dim, **facts)


if __name__ == "__main__":
    main()
