"""Tokens per second of whole training steps on a GPU: LoRA and all weights, padded and packed, eager and compiled.

Texts have 10 to 30 words, which are about as many tokens. A step is that of the training loop: batch, forward,
InfoNCE, backward, clipping, optimiser. The first steps, in which blocks are compiled, are not measured. Tokens are
those of the texts, without padding.
Run: python bench/gpu_training.py [--backbone smollm2-135m] [--batches 512,1024] [--steps 40] [--fastest]
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import torch

from corpus import sentences
from measure import peak_megabytes, report

WARM_UP_STEPS = 10


class LastStepDone(Exception):
    """Raised after the last measured step to stop the training."""


def random_sentences(count):
    """Return random texts of 10 to 30 words; hardly any text occurs twice."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 31, count)
    words = rng.choice(" ".join(sentences(48)).split(), lengths.sum())
    return [" ".join(text) for text in np.split(words, lengths.cumsum()[:-1])]


def random_triplets(count):
    """Return training data of random triplets, with dev pairs only because a training requires them."""
    from decoder2vec.text.files import ScoredPairs
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
    from decoder2vec.training.data import TrainingData

    texts = random_sentences(3 * count)
    triplets = [Example(*texts[3 * n : 3 * n + 2], (texts[3 * n + 2],), n) for n in range(count)]
    dev = ScoredPairs("none", ["a", "b"], ["c", "d"], [0.0, 1.0])
    return TrainingData(None, (dev,), contrastive=ContrastiveExamples.of(triplets))


def tokens_per_second(recipe, data, backbone, steps):
    """Train with a recipe and return its speed after the warm-up."""
    from decoder2vec.training.context import TokenContext
    from decoder2vec.training.recipes.recipe import Trainer

    trainer = Trainer(recipe, data, backbone)
    times = []

    def on_progress(progress):
        if progress.step in (WARM_UP_STEPS, WARM_UP_STEPS + steps):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())
        if progress.step == WARM_UP_STEPS + steps:
            raise LastStepDone

    # evaluations are not measured
    with patch.object(TokenContext, "dev_score", lambda *_: 0.0), suppress(LastStepDone):
        trainer.run(0, on_progress=on_progress)
    corpus, examples = trainer.corpus, data.contrastive
    tokens = sum(len(corpus.prompts[corpus.index[text]].ids) for text in examples.texts)
    tokens_per_step = recipe.training.batch * tokens / len(examples)
    return tokens_per_step * steps / (times[1] - times[0])


def main() -> None:
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.backbone.packing import can_pack
    from decoder2vec.training import batch_encoder
    from decoder2vec.training.recipes.adapter import ReadSettings
    from decoder2vec.training.recipes.full import FullRecipe
    from decoder2vec.training.recipes.lora import LoraRecipe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--batches", default="512,1024")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fastest", action="store_true", help="packed and compiled alone")
    args = parser.parse_args()
    choices = (True,) if args.fastest else (False, True)
    backbone = Backbone.load(args.backbone)
    rows = []
    for batch in map(int, args.batches.split(",")):
        data = random_triplets(batch * (WARM_UP_STEPS + args.steps))
        for make, packed, compiled in product((LoraRecipe, FullRecipe), choices, choices):
            recipe = make(read=ReadSettings(pooling="mean"), attention="bidirectional", compile_blocks=compiled)
            recipe = replace(recipe, training=replace(recipe.training, batch=batch, evaluate_every=10**6))
            with patch.object(
                batch_encoder, "packing_pays", lambda model, _, packed=packed: packed and can_pack(model)
            ):
                speed = tokens_per_second(recipe, data, backbone, args.steps)
            blocks, batches = "compiled" if compiled else "eager", "packed" if packed else "padded"
            rows.append((recipe.name, batch, batches, blocks, f"{speed:.0f}", f"{peak_megabytes():.0f}"))
            print(*rows[-1], flush=True)
    columns = ("trained", "triplets a batch", "batches", "blocks", "tokens/s", "peak MB so far")
    report("gpu_training", columns, rows, backbone=args.backbone, dtype=backbone.dtype_name, steps=args.steps)


if __name__ == "__main__":
    main()
