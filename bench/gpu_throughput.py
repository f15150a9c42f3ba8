"""Tokens per second on one GPU in bfloat16, reading all layers or the last one, and the share of the GEMM peak.

Tokenising, pooling and copying the vectors to the host are included.
Run: python bench/gpu_throughput.py [model]
"""

from __future__ import annotations

import random
import sys

import torch

from decoder2vec import Backbone, Extractor, Reading
from measure import best_seconds, flops_per_token, gemm_flops, report

VOCABULARY = [
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


def random_texts(count: int, words: int) -> list[str]:
    """Return random texts of about `words` words, which are about as many tokens."""
    rng = random.Random(0)
    return [" ".join(rng.choices(VOCABULARY, k=max(1, round(rng.gauss(words, words / 4))))) for _ in range(count)]


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(model, device="cuda")
    gemm_peak = gemm_flops(backbone.device, torch.bfloat16)
    per_token = flops_per_token(backbone)
    rows = []
    for words, count in ((16, 40_000), (64, 16_000), (256, 6_000)):
        texts = random_texts(count, words)
        for name, layers in (("all", range(backbone.n_layers + 1)), ("last", [backbone.n_layers])):
            extractor = Extractor(backbone, [Reading(layer, "mean") for layer in layers])
            extractor(texts[:2000])  # warm up
            seconds = best_seconds(lambda extractor=extractor, texts=texts: extractor(texts))
            extractor.stats.tokens = extractor.stats.padded_tokens = 0
            extractor(texts)
            speed = extractor.stats.tokens / seconds
            gemm_share = speed * per_token / gemm_peak
            rows.append((words, name, round(speed), f"{gemm_share:.1%}", f"{extractor.stats.padding:.1%}"))
    columns = ("words", "layers", "tokens/s", "share of peak", "padding")
    report("gpu_throughput", columns, rows, dtype=str(backbone.dtype), peak_tflops=round(gemm_peak / 1e12))


if __name__ == "__main__":
    main()
