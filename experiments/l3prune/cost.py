"""Measure the cost of encoding with a model: seconds, tokens per second and peak memory, as one line of JSON.

Run: python experiments/l3prune/cost.py MODEL --data DIR [--texts 512]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch

from decoder2vec import Encoder
from decoder2vec.backbone.blocks import count_parameters
from decoder2vec.text.files import read_pairs

ROUNDS = 3


def main() -> None:
    """Encode the same texts several times and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=512)
    arguments = parser.parse_args()
    texts = read_pairs(arguments.data / "sts" / "stsb-dev.tsv").texts()[: arguments.texts]
    encoder = Encoder.from_pretrained(arguments.model, template="plain", pooling="weightedmean", normed=True)
    encoder.encode(texts[:32])  # warm up
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        encoder.encode(texts)  # returns vectors on the host, so a GPU has finished
        times.append(time.perf_counter() - started)
    tokens = encoder.stats.tokens
    on_gpu = encoder.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = encoder.backbone.model
    cost = {
        "layers": encoder.backbone.n_layers,
        "parameters": count_parameters(model),
        "texts": len(texts),
        "seconds": round(min(times), 4),
        "tokens_per_second": round(tokens / (ROUNDS * sum(times) / len(times))),
        "peak_mb": round(peak / 2**20),
        "weights_mb": round(sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20),
        "device": str(encoder.device),
    }
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
