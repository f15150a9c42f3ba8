"""Train the sources of the study: LoRA of rank 8 on NLI triplets, by MNTP, by SimCSE after it, and by punctuation.

    python experiments/choose/sources.py triplets.tsv texts.txt OUT [--dev stsb-dev.tsv] [--device cuda]

The study took 20,000 triplets and 20,000 texts of 6 to 40 words: minutes on a GPU. OUT then holds the encoders nli,
mntp, simcse and punctuation, which choose/study.py takes as sources.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import decoder2vec as d2v

MEAN = ("attention=bidirectional", "read.template=plain", "read.pooling=mean", "read.max_length=512")
SOURCES = {
    "nli": ("training.batch=256", "training.steps=80", "training.evaluate_every=40"),
    "mntp": (*MEAN, "objective.name=mntp", "training.batch=128", "training.steps=200"),
    "simcse": (*MEAN, "objective.name=simcse", "training.batch=128", "training.steps=100"),
    "punctuation": (*MEAN, "objective.name=punctuation", "training.batch=128", "training.steps=200"),
}
"""Settings of the recipe `lora`, besides the rank and the rate."""


def main() -> None:
    """Train the four encoders one after the other; SimCSE starts from MNTP."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("triplets", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--dev", type=Path, nargs="*", default=[], help="scored pairs by which nli and simcse are chosen"
    )
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--device")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the training of every source")
    arguments = parser.parse_args()
    for name, settings in SOURCES.items():
        result = d2v.train(
            "lora",
            arguments.triplets if name == "nli" else arguments.texts,
            arguments.out / "mntp" if name == "simcse" else arguments.backbone,
            arguments.out / name,
            dev=arguments.dev if name in ("nli", "simcse") else (),
            settings=["rank=8", "alpha=16", "training.rate=1e-3", *settings, *arguments.set],
            device=arguments.device,
        )
        print(f"{name}: {result.encoder}", flush=True)


if __name__ == "__main__":
    main()
