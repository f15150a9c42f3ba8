"""Share of the machine's measured float32 matrix rate that encoding reaches, and share of padding tokens.

Run: python bench/gemm_share.py [model]
"""

from __future__ import annotations

import sys

import torch

from corpus import sentences, texts_of_length, texts_of_mixed_lengths
from decoder2vec import Backbone, Extractor, Reading
from measure import best_seconds, flops_per_token, gemm_flops, report

REPEATS = 3


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(model, device="cpu")
    all_layers = [Reading(layer, "mean") for layer in range(backbone.n_layers + 1)]
    rows = []
    for kind, texts in (
        ("64-token texts", texts_of_length(96, 48)),
        ("sentences", sentences(300)),
        ("mixed lengths", texts_of_mixed_lengths(300)),
    ):
        extractor = Extractor(backbone, all_layers)
        gemm_rate = gemm_flops(backbone.device, torch.float32)
        seconds = best_seconds(lambda extractor=extractor, texts=texts: extractor(texts), REPEATS)
        tokens = extractor.stats.tokens / REPEATS
        share = tokens * flops_per_token(backbone) / seconds / gemm_rate
        rows.append(
            (
                kind,
                round(tokens / len(texts), 1),
                round(tokens / seconds),
                f"{gemm_rate / 1e9:.0f}",
                f"{share:.0%}",
                f"{extractor.stats.padding:.1%}",
            )
        )
    columns = ("texts", "tokens each", "tokens/s", "GEMM GFLOP/s", "share of GEMM", "padding")
    report("gemm_share", columns, rows, model=model, dtype=backbone.dtype_name, layers="all")


if __name__ == "__main__":
    main()
