"""Peak private memory of a training on cached latents, for few and for many texts: it must not grow with the data.

Pages of the memory-mapped store belong to the file cache, which the system can reclaim, and are not counted (Linux).
Run: python bench/training_memory.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from measure import report

COUNTS = (8_000, 128_000)
SEGMENT, BATCH = 8000, 128


def private_megabytes() -> float:
    """Return the memory of this process that is not backed by a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def peak_of_training(n_texts: int) -> float:
    """Train one epoch on random latents of `n_texts` texts; return the peak memory above that before, in MB."""
    import numpy as np
    import torch

    from decoder2vec.activations.extract import Reader
    from decoder2vec.activations.latent_table import LatentTable
    from decoder2vec.activations.store import Store, text_key
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.config import Reading
    from decoder2vec.heads.codes import CodeNet, CodeSpec
    from decoder2vec.text.template import Template

    backbone = Backbone.load("tiny-llama")
    readings = [Reading(layer, pooling) for pooling in ("mean", "max", "sum") for layer in range(5)]
    reader = Reader(backbone, readings, Template("{text}"))
    store = Store(reader.extractors[0][1].space())
    texts = [f"text {i}" for i in range(n_texts)]
    for start in range(0, n_texts, SEGMENT):
        keys = [text_key(text) for text in texts[start : start + SEGMENT]]
        shape = (len(keys), len(readings), backbone.dim)
        store.add(keys, np.random.default_rng(start).normal(size=shape).astype(np.float32))
    del store
    table = LatentTable(reader, texts)
    net = CodeNet(CodeSpec(backbone.dim, (256,) * len(readings)))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    samples, running = [private_megabytes()], True

    def sample_memory() -> None:
        while running:
            samples.append(private_megabytes())
            time.sleep(0.01)

    sampler = threading.Thread(target=sample_memory)
    sampler.start()
    for start in range(0, n_texts, BATCH):
        optimizer.zero_grad()
        net(table.batch(np.arange(start, min(start + BATCH, n_texts)))).square().sum().backward()
        optimizer.step()
    running = False
    sampler.join()
    return max(samples) - samples[0]


def main() -> None:
    if len(sys.argv) > 1:
        print(peak_of_training(int(sys.argv[1])))
        return
    rows = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, __file__, str(count)]
            environment = {**os.environ, "D2V_CACHE": cache}
            process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        rows.append((count, round(count * 15 * 32 * 4 / 2**20), round(float(process.stdout.split()[-1]))))
    report("training_memory", ("texts", "latents, MB", "peak of training, MB"), rows)


if __name__ == "__main__":
    main()
