"""Exact and approximate search over a million vectors of 576 dimensions: build time, recall@10, queries, memory, disk.

The vectors are a mixture of Gaussians around real ones: for each of the given vectors, with the covariance of its 20
nearest neighbours. The queries are 200 of the given vectors, which are no centres. Every method runs in a process of
its own and answers one query at a time. CPU seconds are those of all threads; other processes do not count in them.

Run: d2v embed texts.txt --out real.npy
     python bench/million_vectors.py real.npy --rows 1000000 --methods exact,ivf_rq,ivf_pq
Methods of faiss and usearch need these packages; pgvector needs $D2V_POSTGRES, the address of an empty database.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.search.index import open_store
from decoder2vec.search.ranking import DenseSearch, DocumentRanker
from decoder2vec.search.store import Chunk, ChunkStore
from measure import peak_megabytes, report

TOP, N_QUERIES, N_NEIGHBOURS, BATCH = 10, 200, 20, 20_000
RESCORED = 160
"""Candidates that are rescored: as many as an index takes for ten documents."""
SHARDS = 100
"""Values of the metadata by which a search is filtered."""
CHANGED = 10_000
"""Vectors that are deleted, and others that are added, after the approximate index was built."""

Search = Callable[[np.ndarray], list[int]]
COLUMNS = (
    "method",
    "build, CPU s",
    "build, s",
    "recall@10",
    "CPU ms a query",
    "queries/s",
    "peak MB",
    "disk MB",
    "note",
)


# --- data ------------------------------------------------------------------------------------------------------------


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def mixture(centres: np.ndarray, rows: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches of unit vectors around the centres, of which each varies as its nearest neighbours do."""
    rng = np.random.default_rng(seed)
    near = np.argsort(-(centres @ centres.T), axis=1)[:, 1 : N_NEIGHBOURS + 1]
    for start in range(0, rows, BATCH):
        n = min(BATCH, rows - start)
        chosen = rng.integers(len(centres), size=n)
        weights = rng.standard_normal((n, N_NEIGHBOURS)).astype(np.float32) / np.sqrt(N_NEIGHBOURS)
        vectors = centres[chosen] * (1 - weights.sum(1, keepdims=True))
        for number in range(N_NEIGHBOURS):
            vectors += weights[:, number : number + 1] * centres[near[chosen, number]]
        vectors += 0.1 / np.sqrt(vectors.shape[1]) * rng.standard_normal(vectors.shape, dtype=np.float32)
        yield unit(vectors)


def prepare(real_file: Path, rows: int, folder: Path) -> None:
    """Write vectors.npy, queries.npy and centres.npy into the folder, unless they are there."""
    if (folder / "centres.npy").exists():
        return
    real = unit(np.load(real_file).astype(np.float32))
    queries, centres = real[:N_QUERIES], real[N_QUERIES:]
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (rows, real.shape[1]))
    for number, batch in enumerate(mixture(centres, rows, seed=0)):
        vectors[number * BATCH : number * BATCH + len(batch)] = batch
    vectors.flush()
    np.save(folder / "queries.npy", queries)
    np.save(folder / "centres.npy", centres)


def nearest_rows(vectors: np.ndarray, queries: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """[queries, TOP] rows of the nearest vectors, by brute force."""
    scores, rows = [], []
    for start in range(0, len(vectors), BATCH):
        batch = queries @ vectors[start : start + BATCH].T
        if allowed is not None:
            batch[:, ~allowed[start : start + BATCH]] = -np.inf
        best = np.argpartition(-batch, TOP, axis=1)[:, :TOP]
        scores.append(np.take_along_axis(batch, best, 1))
        rows.append(best + start)
    order = np.argsort(-np.concatenate(scores, 1), axis=1)[:, :TOP]
    return np.take_along_axis(np.concatenate(rows, 1), order, 1)


def recall(search: Search, queries: np.ndarray, truth: np.ndarray) -> float:
    hits = [len(set(search(query)) & set(row.tolist())) for query, row in zip(queries, truth, strict=True)]
    return sum(hits) / truth.size


# --- methods: each returns a search and the bytes it keeps on disk ----------------------------------------------------


def exact(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
    dense = DenseSearch([str(row) for row in range(len(vectors))], vectors, "cosine")
    return lambda query: [int(key) for key, _ in dense.search(query[None], TOP)[0]], 0


def through_store(kind: str, location: str, vectors: np.ndarray) -> tuple[ChunkStore, DocumentRanker]:
    store = open_store(location)
    store.create("bench", vectors.shape[1])
    store.write_header({"id": "bench", "dim": vectors.shape[1], "ann": kind})
    for start in range(0, len(vectors), BATCH):
        write(store, range(start, min(start + BATCH, len(vectors))), vectors[start : start + BATCH])
    started, cpu = time.perf_counter(), time.process_time()
    store.optimise(kind, "cosine")
    through_store.built = time.perf_counter() - started, time.process_time() - cpu  # without writing the rows
    return store, DocumentRanker(store, "cosine")


def write(store: ChunkStore, rows: range, vectors: np.ndarray) -> None:
    chunks = [Chunk(str(row), 0, 1, "", {"shard": row % SHARDS}, "") for row in rows]
    store.write_chunks(chunks, vectors, replace=False)


def lance(kind: str) -> Callable[[np.ndarray, Path], tuple[Search, int]]:
    def build(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
        store, ranker = through_store(kind, str(folder / f"lance_{kind}"), vectors)
        size = sum(file.stat().st_size for file in (folder / f"lance_{kind}" / "chunks.lance" / "_indices").rglob("*"))

        def search(query: np.ndarray, **options: Any) -> list[int]:
            return [int(document.id) for document in ranker.dense(query[None], TOP, **options)[0]]

        search.store = store
        return search, size

    return build


def pgvector(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
    store, ranker = through_store("hnsw", f"{os.environ['D2V_POSTGRES']}#million", vectors)
    size = store._run("SELECT pg_relation_size('million_nearest'::regclass)")[0][0]
    return lambda query: [int(document.id) for document in ranker.dense(query[None], TOP)[0]], size


def rescored(vectors: np.ndarray, candidates: Search) -> Search:
    """Choose among candidates by the vectors in float32."""

    def search(query: np.ndarray) -> list[int]:
        rows = np.array(candidates(query))
        return rows[np.argsort(-(vectors[rows] @ query))[:TOP]].tolist()

    return search


def faiss_index(description: str, **settings: int) -> Callable[[np.ndarray, Path], tuple[Search, int]]:
    def build(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
        import faiss

        index = faiss.index_factory(vectors.shape[1], description, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[:: max(1, len(vectors) // 50_000)])
        for start in range(0, len(vectors), BATCH):
            index.add(vectors[start : start + BATCH])
        for name, value in settings.items():
            faiss.ParameterSpace().set_index_parameter(index, name, value)
        faiss.write_index(index, str(folder / "faiss"))
        search = rescored(vectors, lambda query: index.search(query[None], RESCORED)[1][0].tolist())
        return search, (folder / "faiss").stat().st_size

    return build


def binary(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
    """Signs of the components, compared by Hamming distance, and rescored."""
    import faiss

    index = faiss.IndexBinaryFlat(vectors.shape[1])
    for start in range(0, len(vectors), BATCH):
        index.add(np.packbits(vectors[start : start + BATCH] > 0, axis=1))

    def candidates(query: np.ndarray) -> list[int]:
        return index.search(np.packbits(query > 0)[None], RESCORED)[1][0].tolist()

    return rescored(vectors, candidates), len(vectors) * vectors.shape[1] // 8


def usearch_index(dtype: str) -> Callable[[np.ndarray, Path], tuple[Search, int]]:
    def build(vectors: np.ndarray, folder: Path) -> tuple[Search, int]:
        from usearch.index import Index

        index = Index(ndim=vectors.shape[1], metric="cos", dtype=dtype)
        for start in range(0, len(vectors), BATCH):
            index.add(np.arange(start, min(start + BATCH, len(vectors))), vectors[start : start + BATCH])
        index.expansion_search = RESCORED
        index.save(str(folder / "usearch"))
        search = rescored(vectors, lambda query: index.search(query, RESCORED).keys.tolist())
        return search, (folder / "usearch").stat().st_size

    return build


METHODS = {
    "exact": exact,
    "ivf_rq": lance("ivf_rq"),
    "ivf_pq": lance("ivf_pq"),
    "ivf_sq": lance("ivf_sq"),
    "hnsw": lance("hnsw"),
    "pgvector": pgvector,
    "faiss_ivf_pq": faiss_index("IVF1024,PQ72", nprobe=64),
    "faiss_int8": faiss_index("SQ8"),
    "faiss_binary": binary,
    "faiss_hnsw": faiss_index("HNSW32,Flat", efSearch=RESCORED),
    "usearch": usearch_index("f32"),
    "usearch_int8": usearch_index("i8"),
}


# --- one method in a process -----------------------------------------------------------------------------------------


def measure_method(name: str, rows: int, folder: Path) -> dict[str, object]:
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")[:rows]
    queries = np.load(folder / "queries.npy")
    truth_file = folder / f"truth_{rows}.npy"
    if not truth_file.exists():
        np.save(truth_file, nearest_rows(vectors, queries))
    truth = np.load(truth_file)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        started, cpu = time.perf_counter(), time.process_time()
        search, disk = METHODS[name](vectors, Path(scratch))
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        wall, cpu = getattr(through_store, "built", (wall, cpu))
        [search(query) for query in queries[:5]]  # what is loaded once
        started, searching = time.perf_counter(), time.process_time()
        score = recall(search, queries, truth)
        seconds, searching = time.perf_counter() - started, time.process_time() - searching
        row = (
            name,
            f"{cpu:.0f}",
            f"{wall:.0f}",
            f"{score:.3f}",
            f"{1000 * searching / len(queries):.1f}",
            f"{len(queries) / seconds:.1f}",
            f"{peak_megabytes():.0f}",
            f"{disk / 2**20:.0f}",
            after_changes(search, vectors, queries, folder) if name == "ivf_rq" else "",
        )
    return dict(zip(COLUMNS, row, strict=True))


def after_changes(search: Search, vectors: np.ndarray, queries: np.ndarray, folder: Path) -> str:
    """Recall with a filter, and after vectors were deleted and others added, before and after an update."""
    store, rows = search.store, np.arange(len(vectors))
    started = time.process_time()
    filtered = recall(
        lambda query: search(query, filter={"shard": "7"}), queries, nearest_rows(vectors, queries, rows % SHARDS == 7)
    )
    milliseconds = 1000 * (time.process_time() - started) / len(queries)
    kept = np.ones(len(vectors) + CHANGED, bool)
    kept[np.unique(nearest_rows(vectors, queries)[:, :5])] = False  # the best hits, and others
    kept[np.random.default_rng(1).choice(len(vectors), CHANGED, replace=False)] = False
    gone = [str(row) for row in np.flatnonzero(~kept)]
    for start in range(0, len(gone), 1000):
        store.delete_documents(gone[start : start + 1000])
    added = np.concatenate(list(mixture(np.load(folder / "centres.npy"), CHANGED, seed=2)))
    write(store, range(len(vectors), len(kept)), added)
    truth = nearest_rows(np.concatenate([vectors, added]), queries, kept)
    changed = recall(search, queries, truth)
    started = time.process_time()
    store.optimise(search.store._ann(), "cosine")
    seconds = time.process_time() - started
    updated = recall(search, queries, truth)
    return (
        f"filter of 1 %: recall {filtered:.3f}, {milliseconds:.0f} CPU ms; {len(gone):,} deleted, {CHANGED:,} added: "
        f"recall {changed:.3f}, after an update of {seconds:.0f} CPU s {updated:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, help="real vectors, .npy")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--folder", type=Path, default=Path("out/million_vectors"), help="where the data is kept")
    parser.add_argument("--method", help="measure this one in the same process")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure_method(options.method, options.rows, options.folder)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.vectors, options.rows, options.folder)
    table = []
    for name in options.methods.split(","):
        process = subprocess.run([*sys.orig_argv, "--method", name], capture_output=True, text=True, check=False)
        if process.returncode:
            print(f"{name} was not measured: {process.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        print(process.stdout.splitlines()[-1], flush=True)
        table.append(tuple(json.loads(process.stdout.splitlines()[-1]).values()))
    report("million_vectors", COLUMNS, table, vectors=options.rows, queries=N_QUERIES)


if __name__ == "__main__":
    main()
