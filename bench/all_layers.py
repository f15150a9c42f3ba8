"""The cost of reading every layer instead of the last one, also against output_hidden_states=True.

Times are the best of several rounds in alternation; peak memory is that of a new process for each method (Linux).
Run: python bench/all_layers.py [model]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from corpus import texts_of_length
from decoder2vec import Backbone, Extractor, Reading
from decoder2vec.text.batches import collate, plan_batches
from measure import report

ROUNDS = 4
POOLINGS = ("mean", "lasttoken", "weightedmean")


def extraction_methods(backbone: Backbone) -> dict[str, Callable[[], object]]:
    """Return functions that read the same texts, by name."""
    all_layers = [Reading(layer, "mean") for layer in range(backbone.n_layers + 1)]
    all_poolings = [Reading(reading.layer, pooling) for reading in all_layers for pooling in POOLINGS]
    texts = texts_of_length(32, 60)
    return {
        "last layer": lambda: Extractor(backbone, all_layers[-1:])(texts),
        "all layers": lambda: Extractor(backbone, all_layers)(texts),
        "all layers, 3 poolings": lambda: Extractor(backbone, all_poolings)(texts),
        "output_hidden_states": lambda: pool_hidden_states(backbone, texts),
    }


@torch.inference_mode()
def pool_hidden_states(backbone: Backbone, texts: list[str]) -> list[torch.Tensor]:
    """Read all layers in the usual way, on the same batches: keep the states of all tokens, then pool."""
    extractor = Extractor(backbone, [Reading(0, "mean")])
    prompts = extractor.tokeniser(texts).prompts
    vectors = []
    for indices in plan_batches([len(prompt.ids) for prompt in prompts], extractor.budget):
        batch = collate([prompts[index] for index in indices], backbone.pad_token_id)
        output = backbone.model(batch.ids, attention_mask=batch.mask, use_cache=False, output_hidden_states=True)
        mask = batch.mask.unsqueeze(-1)
        vectors.append(torch.stack([(states * mask).sum(1) / mask.sum(1) for states in output.hidden_states], 1))
    return vectors


def peak_kilobytes() -> int:
    """Return the peak memory of this process since the counter was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def print_peak(backbone: Backbone, method: str) -> None:
    """Print the peak memory of a method above that of the loaded model, in MB."""
    run = extraction_methods(backbone)[method]
    Extractor(backbone, [Reading(-1, "mean")])(texts_of_length(4, 60))  # warm up
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which is that of loading
    before = peak_kilobytes()
    run()
    print((peak_kilobytes() - before) / 1024)


def measure_peak(model: str, method: str) -> float:
    """Return the peak memory of a method in a process of its own, in MB."""
    process = subprocess.run([sys.executable, __file__, model, method], capture_output=True, text=True, check=True)
    return float(json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(model, device="cpu")
    if len(sys.argv) > 2:
        print_peak(backbone, sys.argv[2])
        return
    methods = extraction_methods(backbone)
    best = dict.fromkeys(methods, float("inf"))
    for _ in range(ROUNDS):
        for name, run in methods.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    rows = [
        (name, round(seconds, 2), f"{seconds / best['last layer'] - 1:+.1%}", round(measure_peak(model, name)))
        for name, seconds in best.items()
    ]
    report(
        "all_layers",
        ("way", "seconds", "against the last layer", "peak MB above the model"),
        rows,
        model=model,
        dtype=backbone.dtype_name,
    )


if __name__ == "__main__":
    main()
