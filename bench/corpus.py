"""Texts for the benches: STS sentences where a file of them is given in D2V_BENCH_TEXTS, else made-up ones."""

from __future__ import annotations

import os
import random
from importlib import resources

from decoder2vec.text.files import read_pairs


def sentences(count: int) -> list[str]:
    """Short sentences, all different."""
    file = os.environ.get("D2V_BENCH_TEXTS")
    if file:
        return read_pairs(file).texts()[:count]
    text = (resources.files("decoder2vec") / "demo" / "sentences.txt").read_text(encoding="utf-8")
    base = text.splitlines()
    return [f"{base[i % len(base)]} ({i})" if i >= len(base) else base[i] for i in range(count)]


def mixed(count: int, longest: int = 200) -> list[str]:
    """Texts from one word to `longest` words, most of them short."""
    rng = random.Random(0)
    words = " ".join(sentences(48)).split()
    lengths = [min(longest, max(1, round(rng.lognormvariate(2.8, 0.9)))) for _ in range(count)]
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def of_length(count: int, words: int) -> list[str]:
    """Different texts of exactly `words` words."""
    rng = random.Random(1)
    vocabulary = " ".join(sentences(48)).split()
    return [" ".join(rng.choices(vocabulary, k=words)) for _ in range(count)]
