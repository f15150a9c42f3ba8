"""Memory and time of the bookkeeping of a distillation, for a million short texts and a teacher that costs nothing.

Each step is measured in CPU seconds and in the peak of private memory, counted from the start of the process's work.
Pages of memory-mapped vectors belong to the file cache, which the system can reclaim, and are not counted (Linux).
Run: python bench/teacher_vectors.py [number of texts]
"""

from __future__ import annotations

import gzip
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from measure import report

DIM, BATCH, BATCHES = 64, 1024, 100
WORDS = ["water", "house", "green", "river", "stone", "paper", "light", "cloud", "bread", "glass", "under", "over"]


def private_megabytes() -> float:
    """Return the memory of this process that is not backed by a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


@contextmanager
def peak_memory():
    """Yield a list; after the block it holds the highest private memory during the block."""
    samples, running = [private_megabytes()], threading.Event()

    def sample() -> None:
        while not running.wait(0.02):
            samples[0] = max(samples[0], private_megabytes())

    thread = threading.Thread(target=sample)
    thread.start()
    yield samples
    running.set()
    thread.join()


def write_texts(file: Path, count: int) -> None:
    """Write a gzipped table of different texts of about fifteen words."""
    draw = random.Random(0)
    with gzip.open(file, "wt", encoding="utf-8", compresslevel=1) as handle:
        handle.write("source\ttext\n")
        for number in range(count):
            handle.write(f"bench\t{number} {' '.join(draw.choices(WORDS, k=draw.randrange(5, 25)))}\n")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        os.environ["D2V_CACHE"] = folder
        write_texts(Path(folder) / "texts.tsv.gz", count)
        report("teacher_vectors", ("step", "CPU seconds", "peak MB"), measure(Path(folder), count))


def measure(folder: Path, count: int) -> list[tuple[str, float, int]]:
    import numpy as np

    from decoder2vec.config import fingerprint
    from decoder2vec.training.data import DataFiles, load_data
    from decoder2vec.training.objectives.corpus import hold_out
    from decoder2vec.training.teachers import Teacher, TeacherVectors

    table = np.random.default_rng(0).normal(size=(BATCH, DIM)).astype(np.float32)
    encoder = SimpleNamespace(fingerprint="free", encode_document=lambda texts, **_: table[: len(texts)])
    Teacher.load = lambda self: encoder
    rows: list[tuple[str, float, int]] = []
    before = private_megabytes()

    def step(name: str, job: Callable[[], object]) -> object:
        started = time.process_time()
        with peak_memory() as peak:
            result = job()
        rows.append((name, round(time.process_time() - started, 1), round(peak[0] - before)))
        return result

    def read_batches(vectors: TeacherVectors) -> None:
        generator = np.random.default_rng(0)
        for _ in range(BATCHES):
            vectors.batch(generator.integers(0, count // 2, BATCH))

    data = step("read the texts", lambda: load_data(folder, DataFiles(texts="texts.tsv.gz"), needs=["corpus"]))
    train, dev = step("hold some out", lambda: hold_out(data.texts, "distill"))
    texts = [*train, *dev]
    step("hash them for the resume key", lambda: fingerprint(train, dev))
    for precision in ("float16", "int8"):
        teacher = Teacher("free", precision=precision)
        step(f"store vectors in {precision}", lambda teacher=teacher: TeacherVectors(teacher, texts))
        vectors = step(f"find them again ({precision})", lambda teacher=teacher: TeacherVectors(teacher, texts))
        step(f"read {BATCHES} batches of {BATCH} ({precision})", lambda vectors=vectors: read_batches(vectors))
    return rows


if __name__ == "__main__":
    main()
