"""Tokens per second on one GPU in bfloat16, reading all layers or the last one, and the share of the GEMM peak.

Rows compare padded batches, packed ones, and packed ones with compiled blocks, which is how a model runs once it has
computed many tokens. Tokenising, pooling and copying the vectors to the host are included; compiling is not.
Run: python bench/gpu_throughput.py [model] [--words 256,64,16] [--layers all,last] [--batches "packed, compiled"]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from decoder2vec import Backbone, Extractor, Reading
from decoder2vec.activations import extract
from decoder2vec.backbone.block_modes import BusyBlocks
from decoder2vec.backbone.packing import can_pack
from measure import best_seconds, flops_per_token, gemm_flops, report

MODES = ("padded", "packed", "packed, compiled")
TEXTS = {256: 12_000, 64: 30_000, 16: 80_000}
"""Number of texts, by their words."""

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


@contextmanager
def mode(name: str, backbone: Backbone) -> Iterator[None]:
    """Context in which texts are computed in one of `MODES`."""
    with (
        patch.object(extract, "packing_pays", lambda backbone: name != "padded" and can_pack(backbone)),
        patch.object(BusyBlocks.of(backbone), "after", -1 if name == "packed, compiled" else sys.maxsize),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--words", default=",".join(map(str, TEXTS)))
    parser.add_argument("--layers", default="all,last")
    parser.add_argument("--batches", choices=MODES, nargs="+", default=MODES)
    args = parser.parse_args()
    backbone = Backbone.load(args.model, device="cuda")
    gemm_peak = gemm_flops(backbone.device, torch.bfloat16)
    per_token = flops_per_token(backbone)
    rows = []
    for words in map(int, args.words.split(",")):
        texts = random_texts(TEXTS[words], words)
        for layers in args.layers.split(","):
            first = 0 if layers == "all" else backbone.n_layers
            readings = [Reading(layer, "mean") for layer in range(first, backbone.n_layers + 1)]
            for name in args.batches:
                with mode(name, backbone):
                    extractor = Extractor(backbone, readings)
                    extractor(texts[:2000])  # warm up
                    seconds = best_seconds(lambda extractor=extractor, texts=texts: extractor(texts), 2)
                    extractor.stats.tokens = extractor.stats.padded_tokens = 0
                    extractor(texts)
                speed = extractor.stats.tokens / seconds
                gemm_share = speed * per_token / gemm_peak
                rows.append((words, layers, name, round(speed), f"{gemm_share:.1%}", f"{extractor.stats.padding:.1%}"))
                print(*rows[-1], flush=True)
    columns = ("words", "layers", "batches", "tokens/s", "share of peak", "padding")
    report("gpu_throughput", columns, rows, dtype=str(backbone.dtype), peak_tflops=round(gemm_peak / 1e12))


if __name__ == "__main__":
    main()
