"""Is search by words as fast as bm25s used directly? The same texts and queries, both ways in turn, in CPU seconds.

Run: python bench/lexical.py [texts]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import bm25s
import Stemmer

from corpus import of_length
from decoder2vec.search.ranking import LexicalSearch
from measure import report

TOP = 10


def cpu_seconds(job: Callable[[], object]) -> float:
    """Of this process alone: both ways use one thread, and what else runs on the machine does not count."""
    started = time.process_time()
    job()
    return time.process_time() - started


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    texts = of_length(count, 60)
    queries = [" ".join(text.split()[:5]) for text in texts[:200]]
    keys = [str(number) for number in range(count)]
    settings = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}

    def direct_build() -> bm25s.BM25:
        made = bm25s.BM25()
        made.index(bm25s.tokenize(texts, **settings), show_progress=False)
        return made

    def direct_search() -> object:
        asked = bm25s.tokenize(queries, return_ids=False, **settings)
        return direct.retrieve(asked, corpus=keys, k=TOP, show_progress=False)

    direct, ours = direct_build(), LexicalSearch.build(keys, texts)
    rows = []
    for name, plain, wrapped in (
        ("build", direct_build, lambda: LexicalSearch.build(keys, texts)),
        (f"{len(queries)} queries", direct_search, lambda: ours.search(queries, TOP)),
    ):
        times = [(cpu_seconds(plain), cpu_seconds(wrapped)) for _ in range(9)]
        a, b = (min(column) for column in zip(*times, strict=True))
        rows.append((name, f"{a:.3f}", f"{b:.3f}", f"{a / b:.2f}x"))
    report("lexical", ("work", "bm25s directly, s", "ours, s", "speed"), rows, texts=count)


if __name__ == "__main__":
    main()
