"""What does it cost to read every layer instead of the last one, and against output_hidden_states=True?

Time is the best of some runs in turns; peak memory is that of a fresh process for each way.
Run: python bench/all_layers.py [model]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from corpus import of_length
from decoder2vec import Backbone, Extractor, Reading
from decoder2vec.text.batches import collate, plan_batches
from measure import report

ROUNDS = 4


def ways(backbone: Backbone) -> dict[str, object]:
    """Name to a function that reads some texts."""
    every = [Reading(layer, "mean") for layer in range(backbone.n_layers + 1)]
    texts = of_length(32, 60)
    return {
        "last layer": lambda: Extractor(backbone, every[-1:])(texts),
        "all layers": lambda: Extractor(backbone, every)(texts),
        "all layers, 3 poolings": lambda: Extractor(
            backbone, [Reading(r.layer, p) for r in every for p in ("mean", "lasttoken", "weightedmean")]
        )(texts),
        "output_hidden_states": lambda: hidden_states(backbone, texts),
    }


@torch.inference_mode()
def hidden_states(backbone: Backbone, texts: list[str]) -> list[torch.Tensor]:
    """The usual way, on the same batches: keep every layer's every token, then pool."""
    extractor = Extractor(backbone, [Reading(0, "mean")])
    prompts = extractor.tokeniser(texts).prompts
    rows = []
    for numbers in plan_batches([len(prompt.ids) for prompt in prompts], extractor.budget):
        batch = collate([prompts[number] for number in numbers], backbone.pad_token_id)
        states = backbone.model(batch.ids, attention_mask=batch.mask, use_cache=False, output_hidden_states=True)
        mask = batch.mask.unsqueeze(-1)
        rows.append(torch.stack([(s * mask).sum(1) / mask.sum(1) for s in states.hidden_states], 1))
    return rows


def peak_kilobytes() -> int:
    """The most memory this process has held since the peak was last forgotten (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def peak_megabytes(model: str, way: str) -> float:
    """Peak memory above the loaded model, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, model, way], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    backbone = Backbone.load(model, device="cpu")
    jobs = ways(backbone)
    if len(sys.argv) > 2:
        Extractor(backbone, [Reading(-1, "mean")])(of_length(4, 60))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
        before = peak_kilobytes()
        jobs[sys.argv[2]]()
        print((peak_kilobytes() - before) / 1024)
        return
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - started)
    rows = [
        (name, round(seconds, 2), f"{seconds / best['last layer'] - 1:+.1%}", round(peak_megabytes(model, name)))
        for name, seconds in best.items()
    ]
    report("all_layers", ("way", "seconds", "against the last layer", "peak MB above the model"), rows, model=model)


if __name__ == "__main__":
    main()
