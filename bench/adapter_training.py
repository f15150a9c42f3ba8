"""Tokens per second of training steps, against plain loops that pad a batch to its longest text (LoRA: with peft).

A step is forward, InfoNCE and backward over triplets with the lengths of NLI sentences. Each way runs in a process of
its own, twice, in turn; the faster run counts. Tokens are those of the texts, without padding. On a machine that is
shared with others, --cpu counts the CPU seconds of one thread.
Run: python bench/adapter_training.py [--backbone smollm2-135m] [--triplets 16] [--cpu]
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from measure import best_seconds, clock_of, in_turn, peak_megabytes, report, speed_column
from suffix_training import QUANTILES, prompts_of

WAYS = ("lora", "lora, peft", "soft prompt", "soft prompt, plain loop")


def plain_loop(backbone, prompts):
    """A function from a model to last-token vectors of all texts, in one batch padded to the longest."""
    from decoder2vec.text.batches import collate

    batch = collate(prompts, backbone.pad_token_id).to(backbone.device)
    rows = torch.arange(len(prompts), device=backbone.device)

    def vectors(model):
        states = model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        return states[rows, batch.end - 1]

    return vectors


def step_of(way, backbone, prompts):
    """A function that computes the gradients of one step."""
    from decoder2vec.config import Reading
    from decoder2vec.maths.losses import info_nce
    from decoder2vec.training.batch_encoder import BatchEncoder, choose_batch_encoder, token_encoder
    from decoder2vec.training.context import Reads
    from decoder2vec.training.recipes.lora import LoraRecipe
    from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe

    n_triplets = len(prompts) // 3

    def loss(vectors):
        anchors, positives, negatives = vectors.split(n_triplets)
        return info_nce(anchors, positives, negatives[:, None])

    if way == "lora, peft":
        import peft

        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION")
        model = peft.get_peft_model(backbone.model, config)
        vectors = plain_loop(backbone, prompts)
        return lambda: loss(vectors(model)).backward()
    reading = Reading(backbone.n_layers, "lasttoken", True)
    recipe = LoraRecipe() if way == "lora" else SoftPromptRecipe(tokens=16)
    adapted, _ = recipe.adapt(backbone, reading.layer)
    if way == "soft prompt, plain loop":  # all tokens, unsorted: what a library without the shortcut must do
        encode = BatchEncoder(token_encoder(adapted, prompts, reading), [1] * len(prompts), backbone)
    else:
        encode = choose_batch_encoder(
            adapted,
            prompts,
            reading,
            extra_tokens=recipe.extra_tokens,
            suffix_only=recipe.reads is Reads.PREFIX_KV,
            cache_bytes=recipe.cache_bytes,
        )

    def step():
        with adapted.adapter_enabled():
            loss(encode(range(len(prompts)))).backward()

    return step


def measure(way: str, name: str, count: int, cpu: bool) -> None:
    """Measure one way in this process."""
    from decoder2vec.backbone.backbone import Backbone

    backbone = Backbone.load(name)
    lengths = [int(length) for length in np.random.default_rng(0).permutation(np.resize(QUANTILES, 3 * count))]
    prompts = prompts_of(lengths, backbone.model.config.vocab_size)
    step = step_of(way, backbone, prompts)
    clock = clock_of(cpu)
    step()
    print(json.dumps({"seconds": best_seconds(step, 2, clock), "tokens": sum(lengths), "peak": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--triplets", type=int, default=16)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--way")
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments.backbone, arguments.triplets, arguments.cpu)
        return
    options = ["--backbone", arguments.backbone, "--triplets", str(arguments.triplets), *["--cpu"] * arguments.cpu]
    runs = in_turn(__file__, WAYS, *options)
    rows = [(way, f"{run['tokens'] / run['seconds']:.1f}", f"{run['peak']:.0f}") for way, run in runs.items()]
    report(
        "adapter_training",
        ("way", speed_column(arguments.cpu), "peak MB of the process"),
        rows,
        backbone=arguments.backbone,
        triplets=arguments.triplets,
    )


if __name__ == "__main__":
    main()
