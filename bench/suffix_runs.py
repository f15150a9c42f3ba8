"""Wall time of whole trainings of a soft prompt, filling the cache included, for one epoch and for four.

Three methods with the same result: keys and values of the texts cached on disk, recomputed in every step (as happens
above `cap_gb`), and every token forward and backward, as without the cache.
Run: python bench/suffix_runs.py [--backbone smollm2-135m] [--triplets 64] [--tokens 8]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import nullcontext
from unittest.mock import patch

from gpu_training import random_triplets
from measure import report

METHODS = ("cached on disk", "recomputed", "every token")


def seconds_and_loss(method, epochs, args, backbone, data):
    """Return the seconds of a whole training, and its last loss."""
    from decoder2vec.errors import UnsupportedError
    from decoder2vec.training.loop import Schedule
    from decoder2vec.training.recipes.recipe import Trainer
    from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe

    schedule = Schedule(epochs=epochs, batch=min(32, args.triplets), rate=1e-2, evaluate_every=10**6)
    cap_gb = 10.0 if method == "cached on disk" else 0.0
    recipe = SoftPromptRecipe(tokens=args.tokens, cap_gb=cap_gb, training=schedule)
    unsupported = UnsupportedError("switched off in this run")
    no_cache = patch("decoder2vec.training.batch_encoder.cache_keys_values", side_effect=unsupported)
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, D2V_CACHE=folder):
        started = time.perf_counter()
        with no_cache if method == "every token" else nullcontext():
            result = Trainer(recipe, data, backbone).run(0)
        return time.perf_counter() - started, result.notes["training"]["losses"][-1]


def main() -> None:
    from decoder2vec.backbone.backbone import Backbone

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--triplets", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    args = parser.parse_args()
    backbone = Backbone.load(args.backbone)
    data = random_triplets(args.triplets)
    rows = []
    for epochs in (1, 4):
        runs = {method: seconds_and_loss(method, epochs, args, backbone, data) for method in METHODS}
        baseline = runs["every token"][0]
        for method, (seconds, loss) in runs.items():
            rows.append((epochs, method, f"{seconds:.1f} s", f"{baseline / seconds:.2f}x", f"{loss:.5f}"))
            print(rows[-1], flush=True)
    columns = ("epochs", "keys and values", "whole run", "against every token", "last loss")
    report("suffix_runs", columns, rows, backbone=args.backbone, dtype=backbone.dtype_name, triplets=args.triplets)


if __name__ == "__main__":
    main()
