"""Tokens per second of whole training steps on triplets with the lengths of NLI sentences under a prompt, on a GPU.

A step is what the loop does: batch, forward, InfoNCE, backward, clipping, optimiser. The first steps, in which blocks
are compiled, do not count. Tokens are those of the prompts, without padding.
Run: python bench/gpu_training.py [--backbone smollm2-135m] [--batches 128,512] [--steps 40]
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from corpus import sentences
from measure import peak_megabytes, report
from suffix_training import QUANTILES

WARM_UP = 10


class Enough(Exception):
    """The last step that is measured is done."""


def texts_like_nli(count):
    """Made-up texts with about as many words as NLI sentences have tokens; hardly any stands there twice."""
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.resize(QUANTILES, count))
    words = rng.choice(" ".join(sentences(48)).split(), lengths.sum())
    return [" ".join(part) for part in np.split(words, lengths.cumsum()[:-1])]


def tokens_per_second(recipe, data, backbone, steps):
    """Of one recipe, timed between the end of the warm-up and the last step."""
    from decoder2vec.training.recipes.recipe import Trainer

    training = Trainer(recipe, data, backbone)
    training._dev_score = lambda *_: 0.0  # looks at dev are not what is measured
    marks = []

    def on_progress(note):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if note.step == WARM_UP + steps:
            raise Enough

    with suppress(Enough):
        training.run(0, on_progress=on_progress)
    tokens = sum(len(training.prompts[training.place[text]].ids) for text in data.contrast.texts)
    per_step = recipe.training.batch * tokens / len(data.contrast)
    return per_step * steps / (marks[-1] - marks[WARM_UP - 1])


def main() -> None:
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.training.recipes.adapter import ReadSettings
    from decoder2vec.training.recipes.lora import LoraRecipe
    from decoder2vec.text.files import ScoredPairs
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
    from decoder2vec.training.data import TrainingData

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--batches", default="128,512")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone)
    dev = ScoredPairs("none", ["a", "b"], ["c", "d"], [0.0, 1.0])
    rows = []
    for batch in map(int, arguments.batches.split(",")):
        count = batch * (WARM_UP + arguments.steps)
        texts = texts_like_nli(3 * count)
        triplets = [Example(*texts[3 * n : 3 * n + 2], (texts[3 * n + 2],), n) for n in range(count)]
        data = TrainingData(None, (dev,), contrast=ContrastiveExamples.of(triplets))
        for compiled in (False, True):
            recipe = LoraRecipe(read=ReadSettings(template="prompteol"), compile_blocks=compiled)
            recipe = replace(recipe, training=replace(recipe.training, batch=batch, evaluate_every=10**6))
            speed = tokens_per_second(recipe, data, backbone, arguments.steps)
            rows.append((batch, "compiled" if compiled else "as it is", f"{speed:.0f}", f"{peak_megabytes():.0f}"))
    columns = ("triplets a batch", "blocks", "tokens/s", "peak MB so far")
    report("gpu_training", columns, rows, backbone=arguments.backbone, steps=arguments.steps)


if __name__ == "__main__":
    main()
