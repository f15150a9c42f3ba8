"""Tokens per second on one GPU in bfloat16 with every layer captured, and the share of the measured GEMM peak.

Tokenising, copying the vectors back and pooling are all inside the time.
Run: python bench/gpu_throughput.py [model]
"""

from __future__ import annotations

import random
import sys

import torch

from decoder2vec import Backbone, Extractor, Reading
from measure import best_seconds, flops_per_token, gemm_flops, report

WORDS = [
    "the",
    "of",
    "a",
    "river",
    "house",
    "seven",
    "running",
    "quickly",
    "economy",
    "music",
    "small",
    "green",
    "paper",
    "because",
    "light",
]


def texts(count: int, words: int) -> list[str]:
    """Different texts of about `words` tokens."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=max(1, round(rng.gauss(words, words / 4))))) for _ in range(count)]


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(model, device="cuda")
    peak = gemm_flops(backbone.device, torch.bfloat16)
    per_token = flops_per_token(backbone)
    rows = []
    for words, count in ((16, 40_000), (64, 16_000), (256, 6_000)):
        corpus = texts(count, words)
        for name, layers in (("all", range(backbone.n_layers + 1)), ("last", [backbone.n_layers])):
            extractor = Extractor(backbone, [Reading(layer, "mean") for layer in layers])
            extractor(corpus[:2000])
            seconds = best_seconds(lambda extractor=extractor, corpus=corpus: extractor(corpus))
            extractor.stats.tokens = extractor.stats.padded_tokens = 0
            extractor(corpus)
            rate = extractor.stats.tokens / seconds
            share = rate * per_token / peak
            padding = f"{extractor.stats.padding:.1%}"
            rows.append((words, name, round(rate), f"{share:.1%}", padding))
    columns = ("words", "layers", "tokens/s", "share of peak", "padding")
    report("gpu_throughput", columns, rows, dtype=str(backbone.dtype), peak_tflops=round(peak / 1e12))


if __name__ == "__main__":
    main()
