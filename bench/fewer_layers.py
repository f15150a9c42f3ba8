"""What reading fewer layers or fewer prompts saves: speed and scores of variants of experiments/freeze/embedding.toml.

The heads are untrained, since training does not change their speed. Scores come from results/freeze/.
Run: python bench/fewer_layers.py [model]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from corpus import texts_of_length
from decoder2vec import Backbone, Encoder, EncoderSpec, load_plan
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from measure import best_seconds, report

ROOT = Path(__file__).parents[1]
PLAN_FILE = ROOT / "experiments" / "freeze" / "embedding.toml"
VARIANTS = (
    "embedding",
    "embedding_narrow",
    "embedding_one_pass",
    "embedding_stop_five_sixths",
    "embedding_stop_two_thirds",
    "embedding_stop_half",
)


def untrained_encoder(variant: str, backbone: Backbone) -> Encoder:
    """Return the encoder of a variant with a randomly initialised head."""
    recipe = load_plan(PLAN_FILE, variant=variant).stages[0].recipe
    head = LayerwiseHead(CodeNet(recipe.code_spec(backbone)))
    return Encoder(backbone, EncoderSpec(backbone.name, recipe.readings(backbone)), head)


def stored_score(variant: str) -> float:
    """Return the Spearman correlation x 100 of the trained variant on STS-B test."""
    results = json.loads((ROOT / "results" / "freeze" / f"{variant}.json").read_text(encoding="utf-8"))
    return results["mean"]["test"]["stsb-test"]["spearman"]


def main() -> None:
    backbone = Backbone.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    texts = texts_of_length(24, 12)
    encoders = {variant: untrained_encoder(variant, backbone) for variant in VARIANTS}
    seconds = {
        variant: best_seconds(lambda encoder=encoder: encoder.encode(texts), 2) for variant, encoder in encoders.items()
    }
    rows = [
        (
            variant,
            encoder.dim,
            f"{seconds[variant]:.2f}",
            f"{seconds['embedding'] / seconds[variant]:.2f}x",
            stored_score(variant),
        )
        for variant, encoder in encoders.items()
    ]
    report(
        "fewer_layers",
        ("plan", "dim", "s for 24 texts", "speed", "STS-B test"),
        rows,
        model=backbone.name,
        dtype=backbone.dtype_name,
    )


if __name__ == "__main__":
    main()
