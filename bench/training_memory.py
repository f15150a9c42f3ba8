"""Does training hold the data set in memory? Peak private memory of a run on few and on many texts.

Pages of the memory-mapped store belong to the file cache and are not counted: the system takes them back at will.
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


def private_megabytes() -> float:
    """Memory that only this process has (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def train(count: int) -> float:
    """One epoch on made-up latents of `count` texts; the peak above the start."""
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
    texts = [f"text {number}" for number in range(count)]
    for begin in range(0, count, 8000):
        keys = [text_key(text) for text in texts[begin : begin + 8000]]
        store.add(
            keys, np.random.default_rng(begin).normal(size=(len(keys), len(readings), backbone.dim)).astype(np.float32)
        )
    del store
    table = LatentTable(reader, texts)
    net = CodeNet(CodeSpec(backbone.dim, (256,) * len(readings)))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    peaks, running = [private_megabytes()], True

    def on_progress() -> None:
        while running:
            peaks.append(private_megabytes())
            time.sleep(0.01)

    watcher = threading.Thread(target=on_progress)
    watcher.start()
    for begin in range(0, count, 128):
        optimizer.zero_grad()
        net(table.batch(np.arange(begin, min(begin + 128, count)))).square().sum().backward()
        optimizer.step()
    running = False
    watcher.join()
    return max(peaks) - peaks[0]


def main() -> None:
    if len(sys.argv) > 1:
        print(train(int(sys.argv[1])))
        return
    rows = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, __file__, str(count)]
            found = subprocess.run(
                command, env={**os.environ, "D2V_CACHE": cache}, capture_output=True, text=True, check=True
            )
        rows.append((count, round(count * 15 * 32 * 4 / 2**20), round(float(found.stdout.split()[-1]))))
    report("training_memory", ("texts", "latents, MB", "peak of training, MB"), rows)


if __name__ == "__main__":
    main()
