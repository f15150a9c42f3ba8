"""What `d2v eval --tasks all` computes beside encoding: fits on all cores with one thread each, against plain loops.

Vectors are random, in the sizes of banking77, 20 Newsgroups and SICK-R. Every way gives the same scores, except that
with more threads BLAS adds in another order.

Run: python bench/evaluation_suite.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from decoder2vec.backbone.threads import available_cores
from decoder2vec.evaluation.tasks import classification, clustering
from decoder2vec.evaluation.tasks.task import Task, TaskResult, TaskVectors
from decoder2vec.evaluation.vector_cache import VectorCache
from decoder2vec.maths.metrics import spearman_interval
from measure import report

DIM, N_TASKS, TEXTS_OF_TASK = 576, 17, 5000


def main() -> None:
    rows = []
    for name, (task, vectors) in {"logistic regression": banking(), "k-means": newsgroups()}.items():
        loop = partial(score_in_a_loop, task, vectors)
        one_thread = partial(score_in_a_loop, task, vectors, threads=1)
        on_cores = partial(task.score, vectors)
        rows += compare(name, {"loop": loop, "loop, one thread": one_thread, "decoder2vec": on_cores})
        assert one_thread() == on_cores()
    pairs = sick_pairs()
    assert np.allclose(interval_by_sorting(*pairs), spearman_interval(*pairs), rtol=0, atol=1e-12)
    sort, count = partial(interval_by_sorting, *pairs), partial(spearman_interval, *pairs)
    rows += compare("interval of Spearman", {"sort": sort, "decoder2vec": count})
    rows += compare("cost of the texts", ways_to_count())
    threads = max(library["num_threads"] for library in threadpool_info())
    columns = ("computation", "way", "seconds", "CPU seconds", "faster by (CPU)")
    report("evaluation_suite", columns, rows, cores=available_cores(), blas_threads=threads)


def compare(name: str, ways: dict[str, Callable[[], object]]) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each way of a computation: its seconds, and how much faster the last way is."""
    seconds = {}
    for way, job in ways.items():
        wall, cpu = time.perf_counter(), time.process_time()
        job()
        seconds[way] = time.perf_counter() - wall, time.process_time() - cpu
    _, last = list(seconds.values())[-1]
    return [(name, way, f"{wall:.2f}", f"{cpu:.2f}", f"{cpu / last:.1f}x") for way, (wall, cpu) in seconds.items()]


def score_in_a_loop(task: Task, vectors: TaskVectors, threads: int | None = None) -> TaskResult:
    """Score with one fit after the other, each with as many threads as BLAS and OpenMP choose, or `threads`."""
    module = classification if task.kind == "classification" else clustering
    loop = patch.object(module, "map_on_cores", lambda function, items: [function(item) for item in items])
    with loop, threadpool_limits(threads):
        return task.score(vectors)


def banking() -> tuple[Task, TaskVectors]:
    """A classification of 3,080 texts with 77 labels and 130 training texts of each."""
    labels = [str(number % 77) for number in range(77 * 170)]
    texts = [f"text {number}" for number in range(len(labels))]
    task = classification.Classification(
        name="banking", train=texts[3080:], train_labels=labels[3080:], test=texts[:3080], test_labels=labels[:3080]
    )
    return task, TaskVectors({"plain": (texts, labelled_vectors(labels))})


def newsgroups() -> tuple[Task, TaskVectors]:
    """A clustering of 3,616 texts with 20 labels."""
    labels = [str(number % 20) for number in range(3616)]
    texts = [f"text {number}" for number in range(len(labels))]
    task = clustering.Clustering(name="newsgroups", inputs=texts, labels=labels)
    return task, TaskVectors({"plain": (texts, labelled_vectors(labels))})


def labelled_vectors(labels: list[str]) -> NDArray[np.float32]:
    """Vectors that differ by label, with a common mean and few strong dimensions, as decoders give."""
    rng = np.random.default_rng(0)
    scale = np.exp(-np.arange(DIM) / 100)
    centres = rng.standard_normal((len(set(labels)), DIM))[np.array(labels, np.intp)]
    noise = 3 * rng.standard_normal((len(labels), DIM))
    return ((noise + centres) * scale + 3 * rng.standard_normal(DIM)).astype(np.float32)


def sick_pairs() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Similarities and human scores of 4,927 pairs."""
    rng = np.random.default_rng(0)
    similarities = rng.standard_normal(4927)
    return similarities, (similarities + rng.standard_normal(4927)).round(1)


def interval_by_sorting(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bootstrap interval of Spearman, with every sample ranked by sorting it."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(10):
        rows = rng.integers(0, len(x), (100, len(x)))
        ranks = (stats.zscore(stats.rankdata(side[rows], axis=1), axis=1) for side in (x, y))
        values.append(np.mean(next(ranks) * next(ranks), axis=1))
    return np.quantile(np.concatenate(values), [0.025, 0.975])


def ways_to_count() -> dict[str, Callable[[], object]]:
    """Ways to keep the cost of the texts up to date: count all after every task, or those of the task."""
    tasks = [[f"text {task} {number}" for number in range(TEXTS_OF_TASK)] for task in range(N_TASKS)]
    texts = [text for task in tasks for text in task]
    cache = VectorCache(lambda texts: np.zeros((len(texts), 1)), None, lambda: math.nan)
    cache.fill(texts)
    return {
        "all after each of 17 tasks": lambda: [cache.cost(texts) for _ in tasks],
        "decoder2vec": lambda: [cache.cost(task) for task in tasks],
    }


if __name__ == "__main__":
    main()
