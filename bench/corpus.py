"""Texts for the benches: from the file of scored pairs in D2V_BENCH_TEXTS, else made from the sentences of the demo."""

from __future__ import annotations

import os
import random
from importlib import resources

from decoder2vec.text.files import read_pairs


def sentences(count: int) -> list[str]:
    """Return different short sentences; those of the demo are repeated with a number at the end."""
    file = os.environ.get("D2V_BENCH_TEXTS")
    if file:
        return read_pairs(file).texts()[:count]
    demo = (resources.files("decoder2vec") / "demo" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    return [f"{demo[i % len(demo)]} ({i})" if i >= len(demo) else demo[i] for i in range(count)]


def texts_of_mixed_lengths(count: int, max_words: int = 200) -> list[str]:
    """Return random texts of 1 to `max_words` words; most are short."""
    rng = random.Random(0)
    vocabulary = " ".join(sentences(48)).split()
    lengths = [min(max_words, max(1, round(rng.lognormvariate(2.8, 0.9)))) for _ in range(count)]
    return [" ".join(rng.choices(vocabulary, k=length)) for length in lengths]


def texts_of_length(count: int, words: int) -> list[str]:
    """Return random texts of exactly `words` words."""
    rng = random.Random(1)
    vocabulary = " ".join(sentences(48)).split()
    return [" ".join(rng.choices(vocabulary, k=words)) for _ in range(count)]
