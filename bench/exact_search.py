"""How many exact searches a second among 100,000 vectors of 576 numbers? Ours beside numpy and LanceDB's own.

Run: python bench/exact_search.py [rows] [dim]
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

TOP, BATCH, SINGLES = 10, 256, 20


def main() -> None:
    rows, dim = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (100_000, 576)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = rng.standard_normal((BATCH, dim), dtype=np.float32)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    keys = [f"d{row}#0" for row in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        store = LanceStore(Path(folder))
        store.create(dim)
        chunks = [Chunk(key[:-2], 0, 1, "", {}, "") for key in keys]
        store.write_chunks(chunks, vectors, replace=False)
        load = best_seconds(lambda: DenseSearch(*store.read_vectors(), "cosine"), 1)
        ours = DenseSearch(*store.read_vectors(), "cosine")

        def plain(row: int) -> np.ndarray:
            scores = vectors @ unit[row]
            best = np.argpartition(-scores, TOP)[:TOP]
            return best[np.argsort(-scores[best])]

        first = ours.search(queries[:1], TOP)[0]
        assert [key for key, _ in first] == [keys[place] for place in plain(0)]
        ways = {
            "exact search, one query": (SINGLES, lambda n: ours.search(queries[n : n + 1], TOP)),
            "numpy, one query": (SINGLES, plain),
            "LanceDB without an index, one query": (3, lambda n: store.nearest(queries[n], TOP, "cosine", None)),
        }
        table = []
        for name, (count, way) in ways.items():
            seconds = best_seconds(lambda count=count, way=way: [way(n) for n in range(count)], 5)
            table.append((name, f"{count / seconds:.1f}"))
        seconds = best_seconds(lambda: ours.search(queries, TOP), 10)
        table.insert(1, (f"exact search, {BATCH} queries at once", f"{BATCH / seconds:.1f}"))
    started = time.process_time()
    ours.search(queries, TOP)
    cpu = time.process_time() - started
    share = 2 * rows * dim * BATCH / seconds / gemm_flops(torch.device("cpu"), torch.float32)
    facts = {
        "seconds_to_load": round(load, 2),
        "batch_share_of_gemm_rate": f"{100 * share:.0f} %",
        "batch_queries_per_cpu_second": round(BATCH / cpu, 1),  # of one core, whatever else runs beside it
    }
    report("exact_search", ("way", "queries/s"), table, vectors=rows, dim=dim, **facts)


if __name__ == "__main__":
    main()
