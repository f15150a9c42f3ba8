"""What does it save to read fewer layers or fewer prompts? Speed and scores of the encoders of several plans.

The heads are untrained, since their speed does not depend on what they have learned. Scores come from results/freeze/.
Run: python bench/fewer_layers.py [model]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from corpus import of_length
from decoder2vec import Backbone, Encoder
from decoder2vec.config import EncoderSpec
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.training.plan import load_plan
from measure import best_seconds, report

ROOT = Path(__file__).parents[1]
PLANS = (
    "embedding",
    "embedding_narrow",
    "embedding_one_pass",
    "embedding_stop_five_sixths",
    "embedding_stop_two_thirds",
    "embedding_stop_half",
)


def untrained(name: str, backbone: Backbone) -> Encoder:
    recipe = load_plan(ROOT / "experiments" / "freeze" / f"{name}.toml").stages[0].recipe
    head = LayerwiseHead(CodeNet(recipe.code_spec(backbone)))
    return Encoder(backbone, EncoderSpec(backbone.name, recipe.readings(backbone)), head)


def score(name: str) -> float:
    results = json.loads((ROOT / "results" / "freeze" / f"{name}.json").read_text(encoding="utf-8"))
    return results["mean"]["test"]["stsb-test"]["spearman"]


def main() -> None:
    backbone = Backbone.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    texts = of_length(24, 12)
    encoders = {name: untrained(name, backbone) for name in PLANS}
    seconds = {
        name: best_seconds(lambda encoder=encoder: encoder.encode(texts), 2) for name, encoder in encoders.items()
    }
    rows = [
        (name, encoder.dim, f"{seconds[name]:.2f}", f"{seconds['embedding'] / seconds[name]:.2f}x", score(name))
        for name, encoder in encoders.items()
    ]
    report("fewer_layers", ("plan", "dim", "s for 24 texts", "speed", "STS-B test"), rows, model=backbone.name)


if __name__ == "__main__":
    main()
