"""Speed of training steps of LoRA and of a soft prompt, against plain loops (LoRA: with peft).

The plain loops pad a batch to its longest text. A step is forward, InfoNCE and backward over triplets with the lengths
of NLI sentences. Each method runs in a process of its own, twice, in alternation; the faster run counts. Tokens are
counted without padding. On a shared machine use --cpu, which measures CPU seconds of one thread.
Run: python bench/adapter_training.py [--backbone smollm2-135m] [--triplets 16] [--cpu]
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from measure import best_seconds, fastest_runs, peak_megabytes, report, select_clock, speed_column
from suffix_training import NLI_LENGTHS, random_prompts

METHODS = ("lora", "lora, peft", "soft prompt", "soft prompt, plain loop")


def last_token_encoder(backbone, prompts):
    """Return a function from a model to last-token vectors of all prompts, in one batch padded to the longest."""
    from decoder2vec.text.batches import collate

    batch = collate(prompts, backbone.pad_token_id).to(backbone.device)
    rows = torch.arange(len(prompts), device=backbone.device)

    def encode(model):
        states = model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        return states[rows, batch.end - 1]

    return encode


def training_step(method, backbone, prompts):
    """Return a function that computes the gradients of one step."""
    from decoder2vec.config import Reading
    from decoder2vec.maths.losses import info_nce
    from decoder2vec.training.batch_encoder import BatchEncoder, choose_batch_encoder, token_encoder
    from decoder2vec.training.context import Reads
    from decoder2vec.training.recipes.lora import LoraRecipe
    from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe

    n_triplets = len(prompts) // 3

    def triplet_loss(vectors):
        anchors, positives, negatives = vectors.split(n_triplets)
        return info_nce(anchors, positives, negatives[:, None])

    if method == "lora, peft":
        import peft

        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION")
        model = peft.get_peft_model(backbone.model, config)
        encode_all = last_token_encoder(backbone, prompts)
        return lambda: triplet_loss(encode_all(model)).backward()
    reading = Reading(backbone.n_layers, "lasttoken", True)
    recipe = LoraRecipe() if method == "lora" else SoftPromptRecipe(tokens=16)
    adapted, _ = recipe.adapt(backbone, reading.layer)
    if method == "soft prompt, plain loop":  # all tokens, unsorted: what a library must do that caches no keys, values
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
            triplet_loss(encode(range(len(prompts)))).backward()

    return step


def measure(method: str, backbone_name: str, n_triplets: int, cpu: bool) -> None:
    """Measure one method in this process and print the result as JSON."""
    from decoder2vec.backbone.backbone import Backbone

    backbone = Backbone.load(backbone_name)
    lengths = [int(length) for length in np.random.default_rng(0).permutation(np.resize(NLI_LENGTHS, 3 * n_triplets))]
    prompts = random_prompts(lengths, backbone.model.config.vocab_size)
    step = training_step(method, backbone, prompts)
    clock = select_clock(cpu)
    step()  # warm up
    print(json.dumps({"seconds": best_seconds(step, 2, clock), "tokens": sum(lengths), "peak": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--triplets", type=int, default=16)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--method", choices=METHODS)
    args = parser.parse_args()
    if args.method:
        measure(args.method, args.backbone, args.triplets, args.cpu)
        return
    options = ["--backbone", args.backbone, "--triplets", str(args.triplets), *["--cpu"] * args.cpu]
    runs = fastest_runs(__file__, METHODS, *options)
    rows = [(method, f"{run['tokens'] / run['seconds']:.1f}", f"{run['peak']:.0f}") for method, run in runs.items()]
    columns = ("way", speed_column(args.cpu), "peak MB of the process")
    report("adapter_training", columns, rows, backbone=args.backbone, triplets=args.triplets)


if __name__ == "__main__":
    main()
