"""The wall time of whole trainings of a soft prompt, filling the store included, for one epoch and for four.

Three ways to the same numbers: keys and values of the texts kept on disk, computed anew in every step (what happens
above `cap_gb`), and every token read forward and backward, as without the short cut.
Run: python bench/suffix_runs.py [--backbone smollm2-135m] [--triplets 64] [--tokens 8]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import nullcontext
from unittest.mock import patch

from gpu_training import texts_like_nli
from measure import report

WAYS = ("kept on disk", "computed anew", "every token")


def seconds_of(way, epochs, arguments, backbone, data):
    from decoder2vec.errors import UnsupportedError
    from decoder2vec.training.loop import Schedule
    from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe
    from decoder2vec.training.recipes.recipe import Trainer

    schedule = Schedule(epochs=epochs, batch=min(32, arguments.triplets), rate=1e-2, evaluate_every=10**6)
    cap = 10.0 if way == "kept on disk" else 0.0
    recipe = SoftPromptRecipe(tokens=arguments.tokens, cap_gb=cap, training=schedule)
    no_memory = patch("decoder2vec.training.batch_encoder.prefix_memory", side_effect=UnsupportedError("not in this run"))
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, D2V_CACHE=folder):
        started = time.perf_counter()
        with no_memory if way == "every token" else nullcontext():
            result = Trainer(recipe, data, backbone).run(0)
        return time.perf_counter() - started, result.notes["training"]["losses"][-1]


def main() -> None:
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.text.files import ScoredPairs
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
    from decoder2vec.training.data import TrainingData

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--triplets", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone)
    texts = texts_like_nli(3 * arguments.triplets)
    triplets = [Example(*texts[3 * n : 3 * n + 2], (texts[3 * n + 2],), n) for n in range(arguments.triplets)]
    dev = ScoredPairs("none", ["a", "b"], ["c", "d"], [0.0, 1.0])
    data = TrainingData(None, (dev,), contrast=ContrastiveExamples.of(triplets))
    rows = []
    for epochs in (1, 4):
        found = {way: seconds_of(way, epochs, arguments, backbone, data) for way in WAYS}
        whole = found["every token"][0]
        for way, (seconds, loss) in found.items():
            rows.append((epochs, way, f"{seconds:.1f} s", f"{whole / seconds:.2f}x", f"{loss:.5f}"))
            print(rows[-1], flush=True)
    columns = ("epochs", "keys and values", "whole run", "against every token", "last loss")
    report("suffix_runs", columns, rows, backbone=arguments.backbone, triplets=arguments.triplets)


if __name__ == "__main__":
    main()
