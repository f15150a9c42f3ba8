"""Speed of encoders side by side: parameters, dimensions and words per second on the same texts.

Words and not tokens, since every encoder has its own. The encoders take turns, so that all of them meet the same
disturbances. Run: python bench/encoders.py [--cpu] [NAME ...] (anything that `d2v eval` takes)
"""

from __future__ import annotations

import sys
from typing import Any

from corpus import texts_of_length
from decoder2vec.evaluation.baselines import load_encoder
from measure import best_seconds, report, select_clock

WORDS, TEXTS, ROUNDS = 60, 48, 3


def main() -> None:
    cpu = "--cpu" in sys.argv
    clock = select_clock(cpu)
    names = [name for name in sys.argv[1:] if name != "--cpu"] or ["smollm2-135m-general", "all-minilm-l6-v2"]
    encoders = {name: load_encoder(name) for name in names}
    texts = texts_of_length(TEXTS, WORDS)
    seconds = dict.fromkeys(names, float("inf"))
    for _ in range(ROUNDS):
        for name, encoder in encoders.items():
            seconds[name] = min(seconds[name], best_seconds(lambda encoder=encoder: encoder.encode(texts), 1, clock))
    rows = [
        (
            name,
            f"{_parameters(encoder) / 1e6:.0f}M",
            len(encoder.encode("a")),
            f"{TEXTS * WORDS / seconds[name]:.0f}",
            f"{seconds[names[0]] / seconds[name]:.2f}x",
        )
        for name, encoder in encoders.items()
    ]
    speed = "words per CPU second of one thread" if cpu else "words/s"
    report("encoders", ("encoder", "parameters", "dimensions", speed, "speed"), rows)


def _parameters(encoder: Any) -> int:
    """Parameters of the model, without those of an adapter, which is merged."""
    if backbone := getattr(encoder, "backbone", None):
        return sum(parameter.numel() for parameter in backbone.model.parameters())
    parameters = encoder.parameters
    return sum(parameter.numel() for parameter in parameters()) if callable(parameters) else parameters


if __name__ == "__main__":
    main()
