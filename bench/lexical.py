"""BM25 search against bm25s used directly: the same texts and queries, in alternation, in CPU seconds.

Run: python bench/lexical.py [texts]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import bm25s
import Stemmer

from corpus import texts_of_length
from decoder2vec.search.ranking import LexicalSearch
from measure import report

TOP_K, ROUNDS = 10, 9


def cpu_seconds(job: Callable[[], object]) -> float:
    """Return the CPU seconds of a job; other processes do not count, and both methods use one thread."""
    started = time.process_time()
    job()
    return time.process_time() - started


def main() -> None:
    n_texts = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    texts = texts_of_length(n_texts, 60)
    queries = [" ".join(text.split()[:5]) for text in texts[:200]]
    keys = [str(i) for i in range(n_texts)]
    settings = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}

    def build_bm25s() -> bm25s.BM25:
        index = bm25s.BM25()
        index.index(bm25s.tokenize(texts, **settings), show_progress=False)
        return index

    def search_bm25s() -> object:
        query_tokens = bm25s.tokenize(queries, return_ids=False, **settings)
        return direct.retrieve(query_tokens, corpus=keys, k=TOP_K, show_progress=False)

    direct, ours = build_bm25s(), LexicalSearch.build(keys, texts)
    rows = []
    for task, run_bm25s, run_ours in (
        ("build", build_bm25s, lambda: LexicalSearch.build(keys, texts)),
        (f"{len(queries)} queries", search_bm25s, lambda: ours.search(queries, TOP_K)),
    ):
        times = [(cpu_seconds(run_bm25s), cpu_seconds(run_ours)) for _ in range(ROUNDS)]
        bm25s_seconds, our_seconds = (min(column) for column in zip(*times, strict=True))
        rows.append((task, f"{bm25s_seconds:.3f}", f"{our_seconds:.3f}", f"{bm25s_seconds / our_seconds:.2f}x"))
    report("lexical", ("work", "bm25s directly, s", "ours, s", "speed"), rows, texts=n_texts)


if __name__ == "__main__":
    main()
