"""Peak memory of training all weights with the whole and with a partial vocabulary, measured on a GPU.

Each run is a process of its own, since an allocator keeps what it has had. Texts are random words of 10 to 30, or the
lines of a file, all of which count as data even where few steps are taken. A folder with config and tokenizer, but
without weights, gets random ones: memory does not depend on them. On a CPU the peak of the process is reported instead.
Run: python bench/partial_vocabulary.py [--backbone gemma3-270m] [--texts FILE] [--batch 64] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import peak_megabytes, report


def train(backbone_name: str, texts: list[str], batch: int, steps: int, recipe_name: str, partial: bool) -> dict:
    """Train some steps and return the peak memory in MB, the tokens held, and the last loss."""
    from dataclasses import replace

    import torch

    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.text.files import ScoredPairs
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
    from decoder2vec.training.data import TrainingData
    from decoder2vec.training.recipes import recipe_class
    from decoder2vec.training.recipes.adapter import ReadSettings
    from decoder2vec.training.recipes.recipe import Trainer

    triplets = [Example(*texts[n : n + 2], (texts[n + 2],), n) for n in range(0, len(texts) - 2, 3)]
    dev = ScoredPairs("none", texts[:8], texts[8:16], [float(n) for n in range(8)])
    data = TrainingData(None, (dev,), contrastive=ContrastiveExamples.of(triplets))
    backbone = Backbone.load(backbone_name)
    recipe = recipe_class(recipe_name)(read=ReadSettings(pooling="mean"))
    schedule = replace(recipe.training, batch=batch, steps=steps, evaluate_every=10**6, partial_vocabulary=partial)
    recipe = replace(recipe, training=schedule)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    result = Trainer(recipe, data, backbone).run(0)
    return {
        "peak": peak_megabytes(),
        "tokens": result.notes.get("partial vocabulary", {}).get("tokens", backbone.vocabulary_size),
        "loss": result.notes["training"].get("loss"),
    }


def with_weights(name: str, scratch: Path) -> str:
    """Return the name, or a folder with random weights if it is a folder without any."""
    if not Path(name).is_dir() or list(Path(name).glob("*.safetensors")):
        return name
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(name, scratch / "model")
    config = AutoConfig.from_pretrained(name)
    AutoModelForCausalLM.from_config(config).save_pretrained(scratch / "model")
    return str(scratch / "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="gemma3-270m")
    parser.add_argument("--texts", type=Path, help="a file with a text in each line; random texts by default")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recipes", default="full,lora")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "PARTIAL"), help="run one training and print its result")
    args = parser.parse_args()
    if args.texts:
        lines = args.texts.read_text(encoding="utf-8").splitlines()
        texts = list(dict.fromkeys(line for line in lines if line.strip()))
    else:
        from gpu_training import random_sentences

        texts = random_sentences(3 * args.batch * args.steps)
    if args.one:
        print(json.dumps(train(args.backbone, texts, args.batch, args.steps, args.one[0], args.one[1] == "partial")))
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        backbone = with_weights(args.backbone, Path(scratch))
        for recipe in args.recipes.split(","):
            for vocabulary in ("whole", "partial"):
                options = ["--backbone", backbone, "--one", recipe, vocabulary]
                output = subprocess.run(
                    [sys.executable, __file__, *sys.argv[1:], *options], check=True, stdout=subprocess.PIPE, text=True
                )
                result = json.loads(output.stdout.splitlines()[-1])
                rows.append((recipe, vocabulary, result["tokens"], f"{result['peak']:.0f}"))
                print(*rows[-1], flush=True)
    columns = ("trained", "vocabulary", "tokens held", "peak MB")
    report("partial_vocabulary", columns, rows, backbone=args.backbone, batch=args.batch, steps=args.steps)


if __name__ == "__main__":
    main()
