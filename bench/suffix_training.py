"""Speed-up of training a soft prompt on cached keys and values instead of running all tokens in every step.

A step is forward, loss and backward over a batch of texts. The full step runs all tokens, sorted by length; the cached
step runs only the k soft tokens behind them. The bound of the speed-up is (T + k) / k, where T is the mean length.
Lengths are those of NLI sentences.
Run: python bench/suffix_training.py [--backbone smollm2-135m] [--texts 96]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
import torch

from decoder2vec.activations.prefix_kv import cache_keys_values
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.maths.losses import info_nce
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.batch_encoder import BatchEncoder, suffix_costs, suffix_encoder, token_encoder
from measure import best_seconds, report

NLI_LENGTHS = (4, 5, 5, 6, 7, 7, 8, 8, 9, 9, 9, 10, 11, 12, 13, 15, 17, 19, 21, 29)
"""Quantiles of the lengths of NLI sentences in tokens, in steps of 5 %; the mean is 10.4."""


def random_prompts(lengths: list[int], vocabulary_size: int) -> list[Prompt]:
    """Return prompts of random tokens with the given lengths."""
    rng = np.random.default_rng(0)
    return [Prompt(rng.integers(5, vocabulary_size, length).tolist(), 0, length) for length in lengths]


def measure(backbone: Backbone, lengths: list[int], tokens: int) -> tuple[float, float, float, float]:
    """Compare both steps for texts of these lengths and a soft prompt of `tokens` vectors.

    Returns:
        Seconds of a full step, of a cached step and of filling the cache; relative difference of the gradients.

    """
    prompts = random_prompts(lengths, backbone.model.config.vocab_size)
    torch.manual_seed(0)
    soft_prompt = SoftPrompt.initialise(backbone, tokens)
    adapted = backbone.with_adapter(soft_prompt)
    reading = Reading(backbone.n_layers, "lasttoken", True)
    started = time.perf_counter()
    keys_values = cache_keys_values(adapted, prompts, backbone.n_layers)
    cache_seconds = time.perf_counter() - started
    gradients, seconds = [], []
    for encode_chunk, costs in (
        (token_encoder(adapted, prompts, reading), [length + tokens for length in lengths]),
        (suffix_encoder(adapted, keys_values, reading), suffix_costs(prompts, tokens)),
    ):
        encoder = BatchEncoder(encode_chunk, costs, backbone)

        def step(encode: BatchEncoder = encoder) -> None:
            soft_prompt.zero_grad()
            vectors = encode(range(len(lengths)))
            half = len(lengths) // 2
            info_nce(vectors[:half], vectors[half : 2 * half]).backward()

        seconds.append(best_seconds(step, 3))
        gradients.append(soft_prompt.vectors.grad.clone())
    difference = ((gradients[0] - gradients[1]).norm() / gradients[0].norm()).item()
    return seconds[0], seconds[1], cache_seconds, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=96)
    args = parser.parse_args()
    backbone = Backbone.load(args.backbone)
    nli_lengths = list(np.resize(NLI_LENGTHS, args.texts))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["D2V_CACHE"] = folder
        for name, lengths, tokens in (
            ("8 texts of 64 tokens", [64] * 8, 8),
            ("NLI lengths", nli_lengths, 1),
            ("NLI lengths", nli_lengths, 8),
            ("NLI lengths", nli_lengths, 16),
        ):
            full, cached, filling, difference = measure(backbone, [int(length) for length in lengths], tokens)
            bound = (float(np.mean(lengths)) + tokens) / tokens
            speed_up = full / cached
            rows.append(
                (
                    name,
                    tokens,
                    f"{full:.2f} s",
                    f"{cached:.2f} s",
                    f"{filling:.2f} s",
                    f"{speed_up:.2f}x",
                    f"{bound:.2f}x",
                    f"{100 * speed_up / bound:.0f} %",
                    f"{difference:.0e}",
                )
            )
            print(rows[-1], flush=True)
    columns = ("texts", "k", "naive", "short", "filling", "faster", "bound", "of bound", "gradients apart")
    report("suffix_training", columns, rows, backbone=args.backbone, dtype=backbone.dtype_name)


if __name__ == "__main__":
    main()
